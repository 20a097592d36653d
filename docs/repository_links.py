"""Links to files of the repository outside of docs/ work in a checkout; on the site they become the file's path."""

import posixpath
import re


def on_page_markdown(markdown: str, page, **_) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def plain(link: re.Match) -> str:
        text, target = link[1], posixpath.normpath(posixpath.join("docs", folder, link[2].partition("#")[0]))
        if target.startswith("docs/"):
            return link[0]
        return f"`{target}`" if text.strip("`") == target else f"{text} (`{target}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((\.\./[^)\s]*)\)", plain, markdown)
