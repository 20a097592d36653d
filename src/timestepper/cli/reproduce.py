"""timestepper reproduce: a table or figure of the paper, trained where needed, ours beside the paper's."""

import contextlib
import functools
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timestepper.cli.sweep import (
    CHECKPOINT_SECONDS,
    Cluster,
    ClusterChoice,
    ClusterOptions,
    cluster_options,
    make_results,
    warned,
)

if TYPE_CHECKING:
    from timestepper.runs.run import Run


class Length(StrEnum):
    """How long to train."""

    paper = "paper"
    short = "short"


Name = Annotated[
    str,
    typer.Argument(
        help="fig1, fig3 … fig5, table1 … table6 or all of these; counts; ablation56 and other studies; a file; "
        "everything: all that is trained"
    ),
]


def reproduce(
    name: Name,
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value …", show_default=False)] = None,
    list_only: Annotated[bool, typer.Option("--list", help="show what is done and what is missing, and stop")] = False,
    schedule: Annotated[Length, typer.Option(help="short: fewer epochs, marked as such everywhere")] = Length.paper,
    data_root: Annotated[Path | None, typer.Option(help="folder of the data set")] = None,
    results: Annotated[Path, typer.Option(help="folder of records")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of run directories")] = Path("runs"),
    jobs: Annotated[int, typer.Option(min=1, help="runs to train at a time on one GPU, as sweep does")] = 1,
    cluster: ClusterChoice = None,
    cluster_option: ClusterOptions = None,
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
    from timestepper.sweeps.jobs import note
    from timestepper.sweeps.reproduce import SETTLED

    if (jobs > 1 or cluster) and torchrun.launched():
        raise RecipeError("--jobs and --cluster spread the runs by themselves; start it without torchrun")
    options = cluster_options(cluster, cluster_option)
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
            code = _bring_to_end(wanted, results, runs, jobs, changes, cluster, options)
        found.read()
    found.warn()
    if cluster and not list_only:  # jobs may have come to their end
        wanted = found.plan(name, schedule is Length.short, changes)
    if list_only or cluster:
        with warned():
            note(wanted, runs, settled=SETTLED)
    unfinished = list_only or (cluster and any(run.state not in SETTLED for run in wanted))
    gather.show([found.plan_table(name, wanted)] if unfinished else found.tables(name, wanted), json)
    if page:
        found.write(page, TITLE)
    raise typer.Exit(code)


def _bring_to_end(
    wanted: list["Run"],
    results: Path,
    runs: Path,
    jobs: int,
    overrides: list[str],
    cluster: Cluster | None,
    options: dict[str, str],
) -> int:
    """Here, or in jobs of a cluster; the exit code."""
    from timestepper.sweeps.cluster import submit
    from timestepper.sweeps.plan import chooses_checkpoints
    from timestepper.sweeps.reproduce import TO_RECORD, bring_to_end

    to_record = [run for run in wanted if run.state in TO_RECORD]
    if to_record:
        make_results(results)  # a folder that cannot be must not cost a training
    seconds = None if chooses_checkpoints(overrides) else CHECKPOINT_SECONDS
    work = functools.partial(
        bring_to_end, results=results.absolute(), jobs=jobs, checkpoint_seconds=seconds, debug="--debug" in sys.argv
    )
    if cluster and to_record:
        submit(to_record, runs, work, cluster=cluster, options=options, jobs=jobs)
    return work([run for run in wanted if not cluster or run not in to_record])  # the others have something to say
