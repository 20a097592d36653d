"""The page in a real browser: no errors, nothing unnamed, nothing wider than a phone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from timestepper.report.page import write_page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")

# Put into a copy of the page: what only a browser can measure, left in the document for --dump-dom. The copy stands in
# a frame as wide as the screen in question, because a browser's window has a smallest width of its own.
PROBE = """<script>
addEventListener("load", () => {
  const room = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("body *")].filter(e =>
    !e.closest(".scroll") && !e.closest("svg") && getComputedStyle(e).position !== "absolute" &&
    e.getBoundingClientRect().right > room + 1);
  const name = e => (e.getAttribute("aria-labelledby") || "").split(" ")[0];
  const unnamed = [...document.querySelectorAll("svg, img, table, figure")].filter(e =>
    !(e.ariaLabel || e.alt || e.caption || document.getElementById(name(e))));
  const tiny = [...document.querySelectorAll("svg text")].filter(e => {
    const box = e.getBoundingClientRect();
    return Math.max(box.width, box.height) < 9;  // some stand upright
  });
  const outside = [...document.querySelectorAll("svg text")].filter(e => {
    const box = e.getBoundingClientRect();
    return box.left < -1 || box.right > room + 1;
  });
  parent.document.documentElement.dataset.probe = JSON.stringify({
    width: innerWidth, overflow: document.documentElement.scrollWidth - room,
    wide: wide.slice(0, 5).map(e => e.outerHTML.slice(0, 120)), unnamed: unnamed.length,
    tiny: tiny.length, outside: outside.slice(0, 5).map(e => e.textContent),
    drawings: document.querySelectorAll("svg").length,
    requests: performance.getEntriesByType("resource").map(e => e.name)});
});
</script></body>"""


def browse(page, tmp_path, width, *options):
    command = [
        *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
        *("--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"),
        *(
            "--virtual-time-budget=4000",
            "--enable-logging=stderr",
            f"--window-size={width},900",
            *options,
            page.as_uri(),
        ),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, console


def probe(page, tmp_path, width):
    frame = tmp_path / "frame.html"
    inner = escape(page.read_text().replace("</body>", PROBE))
    style = f"width:{width}px;height:900px;border:0"
    frame.write_text(f'<!doctype html><meta charset="utf-8"><iframe style="{style}" srcdoc="{inner}"></iframe>')
    text, console = browse(frame, tmp_path, width + 200, "--dump-dom")
    found = re.search(r'data-probe="(.*?)"', text)
    assert found, console
    assert not console
    return json.loads(unescape(found[1]))


@pytest.mark.parametrize("width", [390, 1280])
def test_the_whole_page(whole_page, tmp_path, width):
    found = probe(whole_page, tmp_path, width)
    assert found["width"] == width
    assert (found["overflow"], found["wide"], found["outside"]) == (0, [], [])
    assert (found["unnamed"], found["tiny"], found["requests"]) == (0, 0, [])
    assert found["drawings"] > 8


def test_the_page_of_two_runs_on_a_phone(records, tmp_path):
    write_page(records[:2], {}, tmp_path / "demo.html", tmp_path / "demo.md", title="Digits")
    found = probe(tmp_path / "demo.html", tmp_path, 390)
    assert (found["overflow"], found["wide"], found["unnamed"]) == (0, [], 0)


def test_the_probe_sees_what_is_wrong(whole_page, tmp_path):
    """A page that is too wide, has an unnamed picture and a script error must not pass."""
    spoiled = tmp_path / "spoiled.html"
    bad = '<main><img src="data:,"><p style="width:2000px">wide</p>'
    spoiled.write_text(whole_page.read_text().replace("<main>", bad))
    found = probe(spoiled, tmp_path, 390)
    assert found["overflow"] > 0
    assert found["wide"]
    assert found["unnamed"] == 1
    spoiled.write_text(whole_page.read_text().replace("<main>", "<main><script>missing()</script>"))
    _, console = browse(spoiled, tmp_path, 390, "--dump-dom")
    assert any("missing is not defined" in line for line in console)


def test_it_can_be_printed(whole_page, tmp_path):
    sheet = tmp_path / "page.pdf"
    browse(whole_page, tmp_path, 1280, f"--print-to-pdf={sheet}", "--no-pdf-header-footer")
    assert sheet.read_bytes().startswith(b"%PDF")
