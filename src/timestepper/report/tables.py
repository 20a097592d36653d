"""A table as data: built once, shown as Markdown, as HTML by the page's template, or in a terminal."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timestepper.terminal import printable


@dataclass(frozen=True)
class TableCell:
    """What stands in one place; ``notes`` are numbers of footnotes, ``tone`` is good, bad, quiet or nothing.

    ``under`` is, for the name of a row, the heading that it shares with its neighbours: the page prints it once.
    """

    text: str
    notes: tuple[int, ...] = ()
    tone: str = ""
    under: str = ""

    @property
    def full(self) -> str:
        return f"{self.under}: {self.text}" if self.under else self.text

    def __str__(self) -> str:
        return self.full + "".join(f"[{note}]" for note in self.notes)


@dataclass
class Table:
    """The first column names the rows, of which most cells are mere text; ``notes`` are what cells' notes number."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Any
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        cells = (tuple(each if isinstance(each, TableCell) else TableCell(each) for each in row) for row in self.rows)
        self.columns, self.rows, self.notes = tuple(self.columns), tuple(cells), tuple(self.notes)

    def markdown(self) -> str:
        """A Markdown table with its caption and footnotes."""
        lines = [f"**{inline(self.caption)}**", "", _line(self.columns)]
        lines.append("| " + " | ".join(["---"] + ["---:"] * (len(self.columns) - 1)) + " |")
        lines += [_line(map(str, row)) for row in self.rows]
        if self.notes:
            lines += ["", *(f"[{number}] {inline(note)}\n" for number, note in enumerate(self.notes, 1))]
        return "\n".join(lines).rstrip() + "\n"

    def as_dict(self) -> dict:
        """Plain data for ``--json``."""
        rows = [[{"text": cell.full, "notes": cell.notes} for cell in row] for row in self.rows]
        return asdict(self) | {"rows": rows}


Rows = list[Sequence[TableCell | str]]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(inline(cell).replace("|", "\\|") for cell in cells) + " |"


def inline(text: str) -> str:
    """The text as Markdown shows it, whatever is in it: no HTML, no link, no line of its own."""
    text = " ".join(printable(text).splitlines())
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
