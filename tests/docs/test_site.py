"""The site builds without a warning and without a network, no link of it leads nowhere, every public name is in it."""

import importlib
import inspect
import os
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = ("", ".adapters", ".controllers", ".data", ".models", ".stability")


class Page(HTMLParser):
    """The places of a page that a link can lead to, its links, and what it loads by itself."""

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids |= {value for key, value in attrs if value and key in ("id", "name")}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag in ("script", "link", "img", "iframe") and (found.get("src") or found.get("href")):
            self.loaded.append(found.get("src") or found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    found = {path.relative_to(site).as_posix(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    assert len(found) > 20
    return found


def test_every_link_leads_somewhere(site, pages):
    wrong = []
    for name, page in pages.items():
        for link in (*page.links, *page.loaded):
            parts = urlsplit(link)
            if name == "404.html" or parts.scheme in ("http", "https", "mailto"):
                continue  # the page of errors has links from the root of a server
            below = posixpath.join(posixpath.dirname(name), unquote(parts.path))
            target = posixpath.normpath(below) if parts.path else name
            fragment = unquote(parts.fragment)
            if not (site / target).is_file() or (fragment and fragment not in pages[target].ids):
                wrong.append(f"{name}: {link}")
    assert not wrong


def test_nothing_is_loaded_from_elsewhere(pages):
    assert not [link for page in pages.values() for link in page.loaded if urlsplit(link).netloc]


@pytest.mark.parametrize("part", PUBLIC)
def test_every_public_name_is_in_the_reference(pages, part):
    module = f"timestepper{part}"
    ids = set().union(*(page.ids for name, page in pages.items() if name.startswith("reference/")))
    assert not [name for name in importlib.import_module(module).__all__ if f"{module}.{name}" not in ids]


def test_every_error_is_in_the_reference(pages):
    errors = importlib.import_module("timestepper.errors")
    classes = inspect.getmembers(errors, inspect.isclass)
    kinds = [name for name, kind in classes if issubclass(kind, errors.TimestepperError)]
    assert len(kinds) > 20
    assert not [name for name in kinds if f"timestepper.errors.{name}" not in pages["reference/errors.html"].ids]


PLACES = r"`((?:src|tests|benchmarks|docs|recipes|claims|results)/[\w/.*-]+)`"
ROOMS = r"`(\w+/|\w+\.py)`"


def test_every_path_that_a_page_names_is_there():
    named = {(path.name, place) for path in markdown_files() for place in re.findall(PLACES, path.read_text("utf-8"))}
    assert len(named) > 10
    assert not [each for each in named if not list(ROOT.glob(each[1].rstrip("/")))]


def test_the_page_about_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rooms = [line for line in text.partition("## The rooms")[2].splitlines() if line.startswith("| `")]
    named = {room.removesuffix("/") for line in rooms for room in re.findall(ROOMS, line.split("|")[1])}
    there = {
        path.name for path in (ROOT / "src" / "timestepper").iterdir() if not path.name.startswith(("_", "py.typed"))
    }
    assert named == there


def markdown_files():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def slug(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@pytest.mark.parametrize("path", markdown_files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_work_in_the_repository_too(path):
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, fragment = link.partition("#")
        if "://" in link:
            continue
        target = (path.parent / file) if file else path
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.M) if fragment else []
        assert not fragment or fragment in map(slug, headings), link
