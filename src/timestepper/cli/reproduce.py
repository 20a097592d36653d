"""timestepper reproduce: a table or figure of the paper, trained where needed, ours beside the paper's."""

import contextlib
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from timestepper.runs.run import Run


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
    gather.check_folder(claims or gather.FOLDER, "--claims", needed=True)
    if page:
        gather.check_page(page, "--page")
    found = gather.Collection(results, runs, claims or gather.FOLDER)
    changes = [*(overrides or []), *([f"data.root={data_root}"] if data_root else [])]
    wanted = found.plan(name, schedule is Length.short, changes)
    if overrides and not wanted:
        raise RecipeError(f"{name} trains nothing, so {' '.join(overrides)} would change nothing; leave it out")
    if wanted or page:
        gather.check_folder(results, "--results")
    code = 0
    if wanted and not list_only:
        with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
            code = _bring_to_end(wanted, results, jobs, changes)
        found.read()
    found.warn()
    gather.show([found.plan_table(name, wanted)] if list_only else found.tables(name, wanted), json)
    if page:
        found.write(page, TITLE)
    raise typer.Exit(code)


def _bring_to_end(runs: list["Run"], results: Path, jobs: int, overrides: list[str]) -> int:
    from timestepper.cli.sweep import CHECKPOINT_SECONDS, widen_device_queue
    from timestepper.files import make_folder
    from timestepper.sweeps.plan import chooses_checkpoints
    from timestepper.sweeps.reproduce import TO_RECORD, bring_to_end

    if any(run.state in TO_RECORD for run in runs):
        make_folder(results)  # a folder that cannot be must not cost a training
    if jobs > 1:
        widen_device_queue(jobs)
    seconds = None if chooses_checkpoints(overrides) else CHECKPOINT_SECONDS
    return bring_to_end(runs, results, jobs=jobs, checkpoint_seconds=seconds, debug="--debug" in sys.argv)
