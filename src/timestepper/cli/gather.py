"""The collector behind ``reproduce``, ``report`` and ``demo``: what there is, what is to run, what is made of both."""

import functools
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from timestepper import terminal
from timestepper.errors import RunDirectoryError, TimestepperError
from timestepper.files import prepare_file
from timestepper.recipe.load import as_dict, load
from timestepper.recipe.schema import Recipe
from timestepper.records import load_diverged, load_records
from timestepper.records.subject import subject_of
from timestepper.report import counts, groups, names
from timestepper.report.claims import FOLDER, Claims, load_claims
from timestepper.report.page import Computed, count_tables, tables_of, write_page
from timestepper.report.results import duration
from timestepper.report.tables import Table, TableCell
from timestepper.runs.run import Run
from timestepper.sweeps import plan, reproduce
from timestepper.terminal import tell, warn

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
        self.diverged, damaged = load_diverged(self.results)
        self.damaged += damaged

    def plan(self, name: str, short: bool = False, overrides: Sequence[str] = ()) -> list[Run]:
        """The runs of a set, and where each of them stands; ``counts`` has none."""
        runs = [] if name == "counts" else plan.open_sets(name, short=short, overrides=tuple(overrides), out=self.runs)
        reproduce.plan(runs, self.records, self.diverged)
        return runs

    def warn(self) -> None:
        """Say which files were left out."""
        for problem in self.problems + self.damaged + groups.repeated(self.records):
            warn(problem)

    def write(self, out: Path, title: str) -> None:
        """The page; with claims also what they let count, and what is still to run of everything but the demo."""
        more: dict[str, Any] = {"problems": self.problems + self.damaged, "diverged": self.diverged}
        if self.claims:
            no_work = (*reproduce.SETTLED, reproduce.UNMEASURED)
            left = [run for run in self.plan("everything") if run.state not in no_work]
            left = [run for run in left if run.sets != ("demo",)]
            hours = duration(3600 * sum(run.hours for run in left))
            caption = "Not yet run, with the GPU time that each line is expected to take on one H200-class card"
            pending = run_table("pending", f"{caption}: {len(left)} runs, {hours} in all", left, self.claims)
            more |= {"computed": compute(self.claims), "pending": pending}
        write_page(self.records, self.claims, out, out.with_suffix(".md"), title, **more)

    def tables(self, name: str, runs: Sequence[Run]) -> list[Table]:
        """What a name prints: all records of such runs, ours beside the paper's."""
        if name == "counts":
            return count_tables(self.claims, self.claims, compute(self.claims))
        computed = compute(self.claims) if name in ("all", *_COUNTED) else Computed()
        if name == "fig1":
            computed = Computed(solutions=solutions())
        wanted = {_kind(as_dict(run.recipe)) for run in runs}
        shown = [record for record in self.records if _kind(record.recipe) in wanted]
        chosen = tuple(self.claims) if name == "all" else (name,)
        return tables_of(chosen, self.records, self.claims, computed, shown, self.diverged)

    def plan_table(self, name: str, runs: Sequence[Run]) -> Table:
        """Where the runs of a set stand."""
        done, left = sum(run.state == reproduce.DONE for run in runs), duration(3600 * sum(run.hours for run in runs))
        caption = f"{name}: {done} of {len(runs)} runs done, about {left} of GPU time to go"
        return run_table(
            "plan", caption if runs else f"{name}: nothing to train, computed in seconds", runs, self.claims
        )


def _kind(recipe: dict[str, dict[str, Any]]) -> tuple:
    data = recipe["data"]
    return data["name"], data["batch_size"], recipe["model"]["name"], recipe["run"]["epochs"]


# -- what needs no run -------------------------------------------------------------------------------------------------


def compute(claims: Claims) -> Computed:
    """Counts, shapes and Figure 1; takes some seconds, because the real networks are built.

    A network that a claim names and no library has is left out: the tables then say that it was not counted.
    """
    from timestepper.counts import measure, structure

    # The networks that each claim file names, with their controllers; a structure is that of the network itself.
    named = {name: counts.wanted({name: claim}) for name, claim in claims.items()}
    shaped = {name: {structure.model for structure in claim.structure} for name, claim in claims.items()}
    counted: dict[str, Any] = {}
    shapes: dict[str, Any] = {}
    pairs, shown = set().union(*named.values()), set().union(*shaped.values())
    for model in sorted({model for model, _ in pairs} | shown):
        try:
            counted |= measure(model, sorted(controller for of, controller in pairs if of == model))
            shapes |= {model: structure(model)} if model in shown else {}
        except TimestepperError as error:
            files = (f"{n}.toml" for n in claims if model in shaped[n] | {of for of, _ in named[n]})
            warn(f"{', '.join(files)}: not counted: {error}")
    return Computed(counted, shapes, solutions())


def solutions() -> dict[str, Any]:
    """The three solutions of Figure 1, each with its label."""
    from timestepper.stability.ode import figure_1

    return dict(zip(("large", "small", "rkf"), figure_1().items(), strict=True))


# -- what is to run ----------------------------------------------------------------------------------------------------


def run_table(name: str, caption: str, runs: Iterable[Run], claims: Claims) -> Table:
    """Where runs stand and what they will take, seeds of one kind together."""
    kinds: dict[str, list[Run]] = {}
    for run in runs:
        kinds.setdefault(describe(run.recipe, claims), []).append(run)
    rows = []
    for label, same in kinds.items():
        states: dict[str, list[str]] = {}
        for run in same:
            states.setdefault(f"{run.state} {run.message}".strip(), []).append(str(run.recipe.run.seed))
        told = "; ".join(f"{state} (seed{'s' * (len(of) > 1)} {' '.join(of)})" for state, of in states.items())
        sets, hours = dict.fromkeys(name for run in same for name in run.sets), sum(run.hours for run in same)
        state = TableCell(told, tone="good" if list(states) == [reproduce.DONE] else "")
        rows.append((label, ", ".join(sets), state, duration(3600 * hours) if hours else ""))
    return Table(name, caption, ("Runs", "For", "State", "Expected GPU time"), rows)


def describe(recipe: Recipe, claims: Claims) -> str:
    """Network, data, controller and schedule of a run, in words, and what else is not as usual: ``precision tf32``."""
    found = as_dict(recipe)
    task = groups.task_from(found)
    parts = [names.model_name(task.model), names.data_name(task.data), subject_of(found).label]
    return ", ".join([*parts, groups.how(task, claims, groups.conditions_apart(task, _usual(task.data)))])


@functools.cache
def _usual(data: str) -> groups.Task:
    """The conditions of the shipped recipe for some images, the paper's where it has them."""
    return groups.task_from(as_dict(load(f"{'paper' if data in names.PAPER_DATA else 'smoke'}/{data}")))


# -- folders and files -------------------------------------------------------------------------------------------------


def check_folder(folder: Path, option: str, needed: bool = False) -> None:
    """Refuse a folder whose files cannot be listed, and a missing one where it is needed.

    Records that are there and cannot be read would look as if their runs had never been made.
    """
    try:
        os.listdir(folder)
        return
    except (FileNotFoundError, NotADirectoryError):  # the latter also where a file stands for one of its parents
        missing = "there is no such folder" if needed else ""
        reason = "is a file and not a folder" if os.path.exists(folder) else missing
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
    if reason:
        raise RunDirectoryError(f"{option} {folder}: {reason}; name another")


def check_page(out: Path, option: str) -> None:
    """Refuse what cannot be a page with its tables beside it: before long work, and neither is written alone."""
    import jinja2  # noqa: F401  (missed now, where it is missing)

    if out.suffix == ".md":
        raise RunDirectoryError(f"{option} {out}: name the page, such as report.html; its tables go beside it as .md")
    for path in (out, out.with_suffix(".md")):
        prepare_file(path)


# -- on the terminal ---------------------------------------------------------------------------------------------------


def show(tables: Sequence[Table], as_json: bool = False) -> None:
    """Print tables with their footnotes."""
    if as_json:
        tell(json.dumps([each.as_dict() for each in tables], indent=1, ensure_ascii=False))
        return
    console = terminal.console(highlight=False, width=None if sys.stdout.isatty() else 200)
    for each in tables:
        console.print(rich_table(each))
        for number, note in enumerate(each.notes, 1):
            console.print(f"  [{number}] {note}", markup=False)
        console.print()


def rich_table(table: Table) -> Any:
    """In 80 columns the headings fold; a name or a figure that is cut off would be of no use."""
    from rich import box
    from rich.markup import escape
    from rich.table import Column
    from rich.table import Table as RichTable

    # Of the names of runs, which many columns of figures would squeeze to a word a line, 32 letters at least.
    long = max(len(str(name)) for name in (table.columns[0], *(row[0] for row in table.rows))) > 32
    first = Column(table.columns[0], min_width=32 if long else None, no_wrap=not long, overflow="fold")
    others = (Column(column, justify="right", overflow="fold") for column in table.columns[1:])
    look: Any = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE, "padding": (0, 1, 0, 0)}
    shown = RichTable(first, *others, title=table.caption, pad_edge=False, **look)
    tones = {"good": "green", "bad": "red", "quiet": "dim", "": "none"}
    for row in table.rows:
        shown.add_row(*(f"[{tones[cell.tone]}]{escape(str(cell))}[/]" for cell in row))
    return shown
