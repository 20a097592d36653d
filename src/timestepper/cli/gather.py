"""What ``reproduce``, ``report`` and ``demo`` have in common: what tables and the page are made of, and printing."""

import functools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timestepper import terminal
from timestepper.errors import RunDirectoryError, TimestepperError
from timestepper.report import Computed, Pending, groups, names
from timestepper.report.claims import Claim, Claims
from timestepper.report.counts import wanted
from timestepper.report.tables import Table
from timestepper.terminal import tell

if TYPE_CHECKING:
    from timestepper.experiment.reproduce import Step
    from timestepper.experiment.schema import Recipe

_NO_FOLDER = "there is no such folder"


def compute(claims: Claims) -> Computed:
    """Counts, shapes and Figure 1; takes some seconds, because the real networks are built.

    A network that a claim names and no library has is left out: the tables then say that it was not counted.
    """
    from timestepper.experiment.counts import measure, structures

    shaped = _shaped(claims.values())
    counted: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    pairs = wanted(claims)
    for model in sorted({model for model, _ in pairs} | shaped):
        try:
            counted |= measure(pair for pair in pairs if pair[0] == model)
            shapes |= structures({model} & shaped)
        except TimestepperError as error:
            warn([f"{_named_in(model, claims)}: not counted: {error}"])
    return Computed(counted, shapes, solutions())


def _named_in(model: str, claims: Claims) -> str:
    """The claim files that name a network."""
    models = {name: _shaped([claim]) | {pair[0] for pair in wanted({name: claim})} for name, claim in claims.items()}
    return ", ".join(f"{name}.toml" for name, found in models.items() if model in found)


def _shaped(claims: Iterable[Claim]) -> set[str]:
    return {structure.model for claim in claims for structure in claim.structure}


def solutions() -> dict[str, dict]:
    """The three solutions of Figure 1, and points of the exact one."""
    from timestepper.stability import ode

    found = zip(("large", "small", "rkf"), ode.figure_1().items(), strict=True)
    times = [number / 50 for number in range(151)]  # to t = 3, where the others end
    exact = {"times": times, "values": [ode.exact(time) for time in times]}
    return {"exact": exact} | {
        key: {
            "label": label,
            "times": solution.times.tolist(),
            "values": solution.values.tolist(),
            "steps": solution.steps,
            "error": solution.error,
        }
        for key, (label, solution) in found
    }


def pending(steps: Iterable["Step"], claims: Claims) -> list[Pending]:
    """What is still to run or to be recorded, seeds of one kind together."""
    from timestepper.experiment.reproduce import DONE, UNMEASURED

    kinds: dict[tuple[str, str], list[float]] = {}
    for step in steps:
        if step.state not in (DONE, UNMEASURED):
            label = describe(step.wanted.recipe, claims)
            if not step.hours:  # trained, so a reader should know what else it waits for
                label += f": {step.state}"
            kinds.setdefault((", ".join(step.wanted.sets), label), []).append(step.hours)
    return [Pending(sets, label, len(hours), sum(hours)) for (sets, label), hours in kinds.items()]


def describe(recipe: "Recipe", claims: Claims) -> str:
    """Network, data, controller and schedule of a run, in words, and what else is not as usual: ``precision tf32``."""
    from timestepper.experiment.load import as_dict

    table = as_dict(recipe)
    task = groups.task_from(table)
    parts = [names.model_name(recipe.model.name), names.data_name(recipe.data.name)]
    parts.append(names.subject_name(groups.subject_of(table)))
    extra = groups.conditions_apart(task, _usual(recipe.data.name))
    return ", ".join([*parts, groups.how(task, claims, extra)])


@functools.cache
def _usual(data: str) -> groups.Task:
    """The conditions of the shipped recipe for some images, the paper's where it has them."""
    from timestepper.experiment.load import as_dict, load

    folder = "paper" if data in names.PAPER_DATA else "smoke"
    return groups.task_from(as_dict(load(f"{folder}/{data}")))


def check_folders(given: Mapping[str, Path | None]) -> None:
    """Refuse a folder that an option names and that cannot be read; None is an option that was left out."""
    for option, folder in given.items():
        if folder is not None and (reason := _unreadable(folder)):
            raise RunDirectoryError(f"{option} {folder}: {reason}; name another or leave the option out")


def check_results(folder: Path) -> None:
    """Refuse records that are there and cannot be read: their runs would look as if they had never been made."""
    if (reason := _unreadable(folder)) not in ("", _NO_FOLDER):
        raise RunDirectoryError(f"{folder}: {reason}; name the folder of records with --results")


def _unreadable(folder: Path) -> str:
    """Why the files of a folder cannot be listed; empty where they can."""
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):  # the latter also where a file stands for one of its parents
        return "is a file and not a folder" if os.path.exists(folder) else _NO_FOLDER
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def warn(problems: Sequence[str]) -> None:
    """Say on stderr which files were left out."""
    for problem in problems:
        tell(f"warning: {problem}", error=True)


def show(tables: Iterable[Table]) -> None:
    """Print tables with their footnotes."""
    from rich import box
    from rich.table import Table as RichTable

    console = terminal.console(highlight=False, width=None if sys.stdout.isatty() else 200)
    tones = {"good": "green", "bad": "red", "quiet": "dim"}
    for table in tables:
        shown = RichTable(title=table.caption, title_justify="left", box=box.SIMPLE, title_style="bold")
        for number, column in enumerate(table.columns):
            if number == 0:  # names of runs, which many columns of figures would squeeze to a word a line
                longest = max([len(column), *(len(str(row[0])) for row in table.rows)])
                shown.add_column(column, min_width=min(32, longest), overflow="fold")
            else:
                shown.add_column(column, justify="right", overflow="fold")
        for row in table.rows:
            shown.add_row(*(f"[{tones[c.tone]}]{_safe(c)}[/]" if c.tone in tones else _safe(c) for c in row))
        console.print(shown)
        for number, note in enumerate(table.notes, 1):
            console.print(f"  [{number}] {note}", markup=False)
        console.print()


def _safe(cell) -> str:
    from rich.markup import escape

    return escape(str(cell))
