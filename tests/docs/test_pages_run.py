"""The Python code of every page runs as it is printed, each page from its top to its end."""

import re
from pathlib import Path

import pytest

from timestepper import controllers, names
from timestepper.sites import known

ROOT = Path(__file__).parents[2]


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)


FILES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {page.relative_to(ROOT).as_posix(): page for page in FILES if blocks(page)}


@pytest.fixture(autouse=True)
def _registries_restored():
    tables = (controllers.KINDS, names.CONTROLLERS, known._ADAPTERS)
    before = [dict(table) for table in tables]
    yield
    for table, kept in zip(tables, before, strict=True):
        table.clear()
        table.update(kept)


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_the_page_runs(page):
    names = {"__name__": "docs"}
    for number, block in enumerate(blocks(PAGES[page]), 1):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
