"""The collector behind ``reproduce``, ``report`` and ``demo``: what there is, what is to run, what is made of both."""

import functools
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timestepper import terminal
from timestepper.errors import RunDirectoryError, TimestepperError
from timestepper.files import prepare_file
from timestepper.records import load_records
from timestepper.records.subject import subject_of
from timestepper.report import counts, groups, names
from timestepper.report.claims import FOLDER, Claims, load_claims
from timestepper.report.page import Computed, count_tables, tables_of, write_page
from timestepper.report.results import Pending, duration
from timestepper.report.tables import Table, TableCell, table
from timestepper.terminal import tell

if TYPE_CHECKING:
    from timestepper.recipe.schema import Recipe
    from timestepper.runs.run import Run

_COUNTED = ("table1", "table2", "table3", "table6")


class Collection:
    """The records of a folder and the claims of another; without claims it is not about the paper."""

    def __init__(self, results: Path, runs: Path, claims: Path | None = FOLDER):
        self.results, self.runs = results, runs
        self.claims, self.problems = load_claims(claims) if claims else ({}, [])
        self.read()

    def read(self) -> None:
        """Look at the records, again after a training."""
        self.records, self.damaged = load_records(self.results)

    def plan(self, name: str, short: bool = False, overrides: Sequence[str] = ()) -> list["Run"]:
        """The runs of a set, and where each of them stands; ``counts`` has none."""
        from timestepper.sweeps.plan import open_sets
        from timestepper.sweeps.reproduce import plan

        runs = [] if name == "counts" else open_sets(name, short=short, overrides=tuple(overrides), out=self.runs)
        plan(runs, self.records)
        return runs

    def warn(self) -> None:
        """Say which files were left out."""
        warn(self.problems + self.damaged + groups.repeated(self.records))

    def write(self, out: Path, title: str) -> None:
        """The page; with claims also what they let count, and what is still to run of everything."""
        more: dict[str, Any] = {"problems": self.problems + self.damaged}
        if self.claims:
            runs = (run for run in self.plan("everything") if run.sets != ("demo",))  # no part of the study
            more |= {"computed": compute(self.claims), "pending": pending(runs, self.claims)}
        write_page(self.records, self.claims, out, out.with_suffix(".md"), title, **more)

    def tables(self, name: str, runs: Sequence["Run"]) -> list[Table]:
        """What a name prints: all records of such runs, ours beside the paper's."""
        if name == "counts":
            return count_tables({key: self.claims[key] for key in _COUNTED if key in self.claims}, compute(self.claims))
        computed = compute(self.claims) if name in ("all", *_COUNTED) else Computed()
        if name == "fig1":
            computed = Computed(solutions=solutions())
        wanted = {_kind(_table(run.recipe)) for run in runs}
        shown = [record for record in self.records if _kind(record.recipe) in wanted]
        return tables_of(tuple(self.claims) if name == "all" else (name,), self.records, self.claims, computed, shown)

    def plan_table(self, name: str, runs: Sequence["Run"]) -> Table:
        """Where the runs of a set stand, and what they will take."""
        kinds: dict[str, list[Run]] = {}
        for run in runs:
            kinds.setdefault(describe(run.recipe, self.claims), []).append(run)
        rows = []
        for label, same in kinds.items():
            states = [f"seed {run.recipe.run.seed} {run.state} {run.message}".strip() for run in same]
            if len({(run.state, run.message) for run in same}) == 1:
                seeds = " ".join(str(run.recipe.run.seed) for run in same)
                states = [f"{same[0].state} {same[0].message} (seeds {seeds})".replace("  ", " ")]
            state = TableCell("; ".join(states), tone="good" if all(run.state == "done" for run in same) else "")
            hours = sum(run.hours for run in same)
            rows.append((label, ", ".join(same[0].sets), state, duration(3600 * hours) if hours else ""))
        done, left = sum(run.state == "done" for run in runs), duration(3600 * sum(run.hours for run in runs))
        caption = f"{name}: {done} of {len(runs)} runs done, about {left} of GPU time to go"
        if not runs:
            caption = f"{name}: nothing to train, computed in seconds"
        return table("plan", caption, ("Run", "For", "State", "Expected GPU time"), rows)


def _table(recipe: "Recipe") -> dict[str, dict[str, Any]]:
    from timestepper.recipe.load import as_dict

    return as_dict(recipe)


def _kind(recipe: dict[str, dict[str, Any]]) -> tuple:
    data = recipe["data"]
    return data["name"], data["batch_size"], recipe["model"]["name"], recipe["run"]["epochs"]


# -- what needs no run -------------------------------------------------------------------------------------------------


def compute(claims: Claims) -> Computed:
    """Counts, shapes and Figure 1; takes some seconds, because the real networks are built.

    A network that a claim names and no library has is left out: the tables then say that it was not counted.
    """
    from timestepper.counts import measure, structures

    # The networks that each claim file names, with their controllers; a structure is that of the network itself.
    named = {name: counts.wanted({name: claim}) for name, claim in claims.items()}
    shaped = {name: {structure.model for structure in claim.structure} for name, claim in claims.items()}
    counted: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    pairs, shown = set().union(*named.values()), set().union(*shaped.values())
    for model in sorted({model for model, _ in pairs} | shown):
        try:
            counted |= measure(pair for pair in pairs if pair[0] == model)
            shapes |= structures({model} & shown)
        except TimestepperError as error:
            files = (f"{n}.toml" for n in claims if model in shaped[n] | {of for of, _ in named[n]})
            warn([f"{', '.join(files)}: not counted: {error}"])
    return Computed(counted, shapes, solutions())


def solutions() -> dict[str, dict]:
    """The three solutions of Figure 1, and points of the exact one."""
    from timestepper.stability import ode

    times = [number / 50 for number in range(151)]  # to t = 3, where the others end
    exact = {"times": times, "values": [ode.exact(time) for time in times]}
    found = zip(("large", "small", "rkf"), ode.figure_1().items(), strict=True)
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


# -- what is to run ----------------------------------------------------------------------------------------------------


def pending(runs: Iterable["Run"], claims: Claims) -> list[Pending]:
    """What is still to run or to be recorded, seeds of one kind together."""
    from timestepper.sweeps.reproduce import DONE, UNMEASURED

    kinds: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.state not in (DONE, UNMEASURED):
            label = describe(run.recipe, claims)
            if not run.hours:  # trained, so a reader should know what else it waits for
                label += f": {run.state}"
            kinds.setdefault((", ".join(run.sets), label), []).append(run.hours)
    return [Pending(sets, label, len(hours), sum(hours)) for (sets, label), hours in kinds.items()]


def describe(recipe: "Recipe", claims: Claims) -> str:
    """Network, data, controller and schedule of a run, in words, and what else is not as usual: ``precision tf32``."""
    found = _table(recipe)
    task = groups.task_from(found)
    parts = [names.model_name(task.model), names.data_name(task.data), subject_of(found).label]
    return ", ".join([*parts, groups.how(task, claims, groups.conditions_apart(task, _usual(task.data)))])


@functools.cache
def _usual(data: str) -> groups.Task:
    """The conditions of the shipped recipe for some images, the paper's where it has them."""
    from timestepper.recipe.load import load

    return groups.task_from(_table(load(f"{'paper' if data in names.PAPER_DATA else 'smoke'}/{data}")))


# -- folders and files -------------------------------------------------------------------------------------------------


def check_given(folders: Mapping[str, Path | None]) -> None:
    """Refuse a folder that an option names and that cannot be read; None is an option that was left out."""
    for option, folder in folders.items():
        missing = "" if folder is None or os.path.exists(folder) else "there is no such folder"
        if folder is not None and (reason := _unreadable(folder) or missing):
            raise RunDirectoryError(f"{option} {folder}: {reason}; name another or leave the option out")


def check_results(folder: Path) -> None:
    """Refuse records that are there and cannot be read: their runs would look as if they had never been made."""
    if reason := _unreadable(folder):
        raise RunDirectoryError(f"{folder}: {reason}; name the folder of records with --results")


def _unreadable(folder: Path) -> str:
    """Why the files of a folder cannot be listed; empty where they can, and where there is none."""
    try:
        os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):  # the latter also where a file stands for one of its parents
        return "is a file and not a folder" if os.path.exists(folder) else ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return ""


def check_page(out: Path, option: str) -> None:
    """Refuse what cannot be a page with its tables beside it: before long work, and neither is written alone."""
    if out.is_dir() or out.suffix == ".md":
        raise RunDirectoryError(f"{option} {out}: name the page, such as report.html; its tables go beside it as .md")
    for path in (out, out.with_suffix(".md")):
        prepare_file(path)


# -- on the terminal ---------------------------------------------------------------------------------------------------


def warn(problems: Iterable[str]) -> None:
    """Say on stderr which files were left out."""
    for problem in problems:
        tell(f"warning: {problem}", error=True)


def show(tables: Sequence[Table], as_json: bool = False) -> None:
    """Print tables with their footnotes."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    if as_json:
        tell(json.dumps([each.as_dict() for each in tables], indent=1, ensure_ascii=False))
        return
    console = terminal.console(highlight=False, width=None if sys.stdout.isatty() else 200)
    tones = {"good": "green", "bad": "red", "quiet": "dim", "": "none"}
    for each in tables:
        shown = RichTable(title=each.caption, title_justify="left", box=box.SIMPLE, title_style="bold")
        for number, column in enumerate(each.columns):
            if number == 0:  # names of runs, which many columns of figures would squeeze to a word a line
                longest = max([len(column), *(len(str(row[0])) for row in each.rows)])
                shown.add_column(column, min_width=min(32, longest), overflow="fold")
            else:
                shown.add_column(column, justify="right", overflow="fold")
        for row in each.rows:
            shown.add_row(*(f"[{tones[cell.tone]}]{escape(str(cell))}[/]" for cell in row))
        console.print(shown)
        for number, note in enumerate(each.notes, 1):
            console.print(f"  [{number}] {note}", markup=False)
        console.print()
