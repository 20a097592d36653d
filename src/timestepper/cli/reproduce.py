"""timestepper reproduce: a table or figure of the paper, trained where needed, ours beside the paper's."""

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timestepper.terminal import tell

if TYPE_CHECKING:
    from timestepper.experiment.reproduce import Step
    from timestepper.report.claims import Claims
    from timestepper.report.records import Record
    from timestepper.report.tables import Table


class Schedule(StrEnum):
    """How long to train."""

    paper = "paper"
    short = "short"


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="fig1, fig3 … fig5, table1 … table6 or all of these; counts; ablation56 and other studies; a file; "
            "everything: all that is trained"
        ),
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value …", show_default=False)] = None,
    list_only: Annotated[bool, typer.Option("--list", help="show what is done and what is missing, and stop")] = False,
    schedule: Annotated[Schedule, typer.Option(help="short: fewer epochs, marked as such everywhere")] = Schedule.paper,
    data_root: Annotated[Path | None, typer.Option(help="folder of the data set")] = None,
    results: Annotated[Path, typer.Option(help="folder of records")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of run directories")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="runs to train at a time on one GPU, as sweep does")] = 1,
    claims: Annotated[
        Path | None, typer.Option(help="folder of the paper's numbers; by default the shipped ones")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print the tables as JSON")] = False,
) -> None:
    """Train what has no finished record yet, then print ours beside the paper's.

    Stop it at any time; the same command goes on with what was interrupted and skips what is done.
    """
    from timestepper import report, torchrun
    from timestepper.cli import gather
    from timestepper.errors import RecipeError
    from timestepper.files import make_folder
    from timestepper.report.claims import FOLDER
    from timestepper.report.groups import repeated

    if jobs > 1 and torchrun.launched():
        raise RecipeError("--jobs trains several runs in one process; start it without torchrun, or leave --jobs out")
    gather.check_folders({"--claims": claims})
    found_claims, problems = report.load_claims(claims or FOLDER)
    records, damaged = report.load_records(results)
    changes = [*(overrides or []), *([f"data.root={data_root}"] if data_root else [])]
    steps = [] if name == "counts" else _steps(name, schedule is Schedule.short, tuple(changes), records, runs)
    if overrides and not steps:
        raise RecipeError(f"{name} trains nothing, so {' '.join(overrides)} would change nothing; leave it out")
    if steps:
        gather.check_results(results)
    if list_only:
        gather.warn(problems + damaged + repeated(records))
        _print([_plan_table(steps, name, found_claims)], json)
        return
    code = 0
    if any(step.to_record for step in steps):
        make_folder(results)  # a folder that cannot be must not cost a training
    if steps:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            code = _bring_to_end(steps, results, jobs, changes)
        records, damaged = report.load_records(results)
    gather.warn(problems + damaged + repeated(records))
    tables = _tables(name, steps, found_claims, records)
    _print(tables, json)
    raise typer.Exit(code)


def _print(tables: "list[Table]", as_json: bool) -> None:
    from timestepper.cli import gather

    if as_json:
        import json

        tell(json.dumps([table.as_dict() for table in tables], indent=1, ensure_ascii=False))
    else:
        gather.show(tables)


def _steps(name: str, short: bool, overrides: tuple[str, ...], records: list["Record"], runs: Path) -> list["Step"]:
    from timestepper.experiment.reproduce import contents, plan
    from timestepper.experiment.sets import open_sets

    wanted = open_sets(name, short=short, overrides=overrides)
    return plan(wanted, contents(record.path for record in records), runs)


def _bring_to_end(steps: list["Step"], results: Path, jobs: int, overrides: list[str]) -> int:
    from timestepper.cli.sweep import CHECKPOINT_SECONDS, widen_device_queue
    from timestepper.experiment.reproduce import bring_to_end
    from timestepper.experiment.sweep_plan import chooses_checkpoints

    if jobs > 1:
        widen_device_queue(jobs)
    seconds = None if chooses_checkpoints(overrides) else CHECKPOINT_SECONDS
    return bring_to_end(steps, results, jobs=jobs, checkpoint_seconds=seconds, debug="--debug" in sys.argv)


def _plan_table(steps: list["Step"], name: str, claims: "Claims") -> "Table":
    from timestepper.cli import gather
    from timestepper.report.results import duration
    from timestepper.report.tables import Cell, Table

    kinds: dict[str, list[Step]] = {}
    for step in steps:
        kinds.setdefault(gather.describe(step.wanted.recipe, claims), []).append(step)
    rows = []
    for label, same in kinds.items():
        states = [f"seed {s.wanted.recipe.run.seed} {s.state} {s.progress}".strip() for s in same]
        if len({(s.state, s.progress) for s in same}) == 1:
            seeds = " ".join(str(s.wanted.recipe.run.seed) for s in same)
            states = [f"{same[0].state} {same[0].progress} (seeds {seeds})".replace("  ", " ")]
        tone = "good" if all(s.state == "done" for s in same) else ""
        hours = sum(s.hours for s in same)
        cells = (Cell("; ".join(states), tone=tone), Cell(duration(3600 * hours) if hours else ""))
        rows.append((Cell(label), Cell(", ".join(same[0].wanted.sets)), *cells))
    done = sum(step.state == "done" for step in steps)
    left = duration(3600 * sum(step.hours for step in steps))
    caption = f"{name}: {done} of {len(steps)} runs done, about {left} of GPU time to go"
    if not steps:
        caption = f"{name}: nothing to train, computed in seconds"
    return Table("plan", caption, ("Run", "For", "State", "Expected GPU time"), tuple(rows))


def _tables(name: str, steps: list["Step"], claims: "Claims", records: list["Record"]) -> list["Table"]:
    """What a name prints."""
    from timestepper import report
    from timestepper.cli import gather
    from timestepper.report.page import tables_of

    counted = ("table1", "table2", "table3", "table6")
    if name == "counts":
        return tables_of(counted, [], claims, gather.compute(claims), counts_only=True)
    computed = gather.compute(claims) if name in ("all", *counted) else report.Computed()
    if name == "fig1":
        computed = report.Computed(solutions=gather.solutions())
    wanted = {_kind(as_tables) for as_tables in (_recipe(step) for step in steps)}
    shown = [record for record in records if _kind(record.recipe) in wanted]
    names = tuple(claims) if name == "all" else (name,)
    return tables_of(names, records, claims, computed, shown)


def _recipe(step: "Step") -> dict:
    from timestepper.experiment.load import as_dict

    return as_dict(step.wanted.recipe)


def _kind(recipe: dict) -> tuple:
    data = recipe["data"]
    return data["name"], data["batch_size"], recipe["model"]["name"], recipe["run"]["epochs"]
