"""timestepper reproduce: a table or figure of the paper, trained where needed, ours beside the paper's."""

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from timestepper.experiment.reproduce import Step


class Length(StrEnum):
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
    schedule: Annotated[Length, typer.Option(help="short: fewer epochs, marked as such everywhere")] = Length.paper,
    data_root: Annotated[Path | None, typer.Option(help="folder of the data set")] = None,
    results: Annotated[Path, typer.Option(help="folder of records")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of run directories")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="runs to train at a time on one GPU, as sweep does")] = 1,
    claims: Annotated[
        Path | None, typer.Option(help="folder of the paper's numbers; by default the shipped ones")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="also write the page, as report does; its tables as .md")] = None,
    json: Annotated[bool, typer.Option("--json", help="print the tables as JSON")] = False,
) -> None:
    """Train what has no finished record yet, then print ours beside the paper's.

    Stop it at any time; the same command goes on with what was interrupted and skips what is done.
    """
    from timestepper import torchrun
    from timestepper.cli import gather
    from timestepper.cli.report import TITLE
    from timestepper.errors import RecipeError

    if jobs > 1 and torchrun.launched():
        raise RecipeError("--jobs trains several runs in one process; start it without torchrun, or leave --jobs out")
    gather.check_given({"--claims": claims})
    if page:
        gather.check_page(page, "--page")
    found = gather.Collection(results, runs, claims or gather.FOLDER)
    changes = [*(overrides or []), *([f"data.root={data_root}"] if data_root else [])]
    steps = found.plan(name, schedule is Length.short, changes)
    if overrides and not steps:
        raise RecipeError(f"{name} trains nothing, so {' '.join(overrides)} would change nothing; leave it out")
    if steps or page:
        gather.check_results(results)
    code = 0
    if steps and not list_only:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            code = _bring_to_end(steps, results, jobs, changes)
        found.read()
    found.warn()
    gather.show([found.plan_table(name, steps)] if list_only else found.tables(name, steps), json)
    if page:
        found.write(page, TITLE)
    raise typer.Exit(code)


def _bring_to_end(steps: list["Step"], results: Path, jobs: int, overrides: list[str]) -> int:
    from timestepper.cli.sweep import CHECKPOINT_SECONDS, widen_device_queue
    from timestepper.experiment.reproduce import bring_to_end
    from timestepper.experiment.sweep_plan import chooses_checkpoints
    from timestepper.files import make_folder

    if any(step.to_record for step in steps):
        make_folder(results)  # a folder that cannot be must not cost a training
    if jobs > 1:
        widen_device_queue(jobs)
    seconds = None if chooses_checkpoints(overrides) else CHECKPOINT_SECONDS
    return bring_to_end(steps, results, jobs=jobs, checkpoint_seconds=seconds, debug="--debug" in sys.argv)
