"""timestepper sweep: train several recipes at once."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timestepper.terminal import tell, warn

if TYPE_CHECKING:
    from timestepper.runs.run import Run

CHECKPOINT_SECONDS = 120.0


class Cluster(StrEnum):
    """Where jobs run."""

    slurm = "slurm"
    local = "local"


ClusterChoice = Annotated[
    Cluster | None,
    typer.Option(
        "--cluster",
        help="hand the runs over as jobs of Slurm, or as processes of this machine that go on by themselves",
    ),
]
ClusterOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--cluster-option",
        metavar="KEY=VALUE",
        help="for each job, as sbatch names it: partition, time, account, gpus_per_node, …; may be given several times",
        show_default=False,
    ),
]
StatusFlag = Annotated[
    bool, typer.Option("--status", help="show what is queued, running, finished or failed, and stop")
]
CarryFlag = Annotated[
    bool,
    typer.Option(
        "--carry", help="print the files with which the same command goes on on another machine (for tar), and stop"
    ),
]


def sweep(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPES… [KEY=VALUE …]",
            help="recipes or sets of runs (ablation56), and overrides for all; KEY=A,B trains one run with each",
            show_default=False,
        ),
    ],
    seeds: Annotated[str, typer.Option(help="0,1,2 or 0-2: each recipe with each seed")] = "",
    out: Annotated[Path, typer.Option(help="folder for the run directories; runs that are there are continued")] = Path(
        "runs"
    ),
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time on one GPU; the next begins when one ends")] = 6,
    processes: Annotated[int | None, typer.Option(min=1, help="by default one per GPU; on Slurm: jobs")] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, help="time between checkpoints, in place of what the recipes say; 0: only at the end"),
    ] = CHECKPOINT_SECONDS,
    override: Annotated[bool, typer.Option("--override", help="continue although a recipe has changed")] = False,
    results: Annotated[
        Path | None, typer.Option(help="also write the records of finished runs here, and skip what has one here")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="add to each record what its set says (noise, stability), as soon as the run has ended"
        ),
    ] = False,
    cluster: ClusterChoice = None,
    cluster_option: ClusterOptions = None,
    status: StatusFlag = False,
    carry: CarryFlag = False,
    share: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train several recipes at once on each GPU: faster than one after the other, each as if it were alone.

    Stop it at any time; the same command goes on with what was interrupted and skips what is finished. A run that fails
    is reported and leaves the others alone; the exit code is then 1. With --cluster, jobs do the same: each has the
    runs that share a GPU, and the command returns when it has submitted them.
    """
    options = {} if status else cluster_options(cluster, cluster_option)
    runs = _expand(arguments, seeds, out, checkpoint_seconds, override)
    if measure:
        _check_measure(runs, results, cluster)
    for run in runs:
        run.override, run.results = override, results
        run.measures = run.measures if measure else ()
    if status:
        return show_states(runs, out)
    if carry:
        return _show_files(runs, results)
    if results is not None and not share:
        make_results(results)
    chosen = [runs[int(number)] for number in share.split(",")] if share else _without_record(runs, results)
    if cluster:
        return _submit(chosen, out, cluster, options, jobs, processes)
    raise typer.Exit(_train(runs, chosen, jobs, 1 if share else processes, os.getppid() if share else None))


def _expand(arguments: list[str], seeds: str, out: Path, checkpoint_seconds: float, override: bool) -> "list[Run]":
    from timestepper import torchrun
    from timestepper.errors import RecipeError
    from timestepper.sweeps.plan import expand, parse_seeds, split

    if torchrun.launched():
        raise RecipeError("sweep spreads its runs over the GPUs by itself; start it without torchrun")
    references, overrides = split(arguments)
    if not references:
        raise RecipeError(f"no recipe among {' '.join(arguments)}; name at least one, for example smoke/digits")
    return expand(references, overrides, parse_seeds(seeds), out, checkpoint_seconds, override)


def _check_measure(runs: "list[Run]", results: Path | None, cluster: Cluster | None) -> None:
    from timestepper.errors import RecipeError

    if results is None:
        raise RecipeError("--measure adds to the records of a folder; name it with --results")
    if cluster:
        raise RecipeError("--measure is not for jobs of a cluster; timestepper reproduce --cluster measures in them")
    if not any(run.measures for run in runs):
        raise RecipeError('--measure: no set of these says what to measure (measure = ["noise"]); leave it out')


def _show_files(runs: "list[Run]", results: Path | None) -> None:
    """The results, and of each run that is not done what it needs to go on; all else is said on stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        left = _without_record(runs, results)
    records = [results] if results is not None and results.is_dir() else []
    for path in [*records, *(path for run in left for path in run.carried())]:
        tell(path)


def make_results(folder: Path) -> None:
    """The folder of records, made before anything is trained; and a word where they will not say what they are of."""
    from timestepper.files import make_folder
    from timestepper.recipe.load import FOLDERS
    from timestepper.records import commit

    make_folder(folder)
    if commit() == "unknown" and FOLDERS[0].is_dir():  # a copy of the source: an installation has a version
        warn(f"git knows no commit of {FOLDERS[0].parent}, and records will name none; set TIMESTEPPER_COMMIT to it")


def cluster_options(cluster: Cluster | None, given: list[str] | None) -> dict[str, str]:
    """The options for jobs, checked."""
    from timestepper.errors import ClusterError
    from timestepper.sweeps.cluster import parse_options

    if given and not cluster:
        raise ClusterError(f"--cluster-option {given[0]} is for jobs of a cluster; add --cluster slurm")
    return parse_options(cluster, given or []) if cluster else {}


def show_states(runs: "list[Run]", out: Path) -> None:
    """Where all runs stand, by their folders and their jobs."""
    from timestepper.sweeps import jobs
    from timestepper.sweeps.display import summary_lines

    jobs.look(runs)
    with warned():
        jobs.note(runs, out)
    tell("\n".join(summary_lines(runs)))


@contextlib.contextmanager
def warned() -> Iterator[None]:
    """Where a cluster does not answer, what the folders of the runs say is shown."""
    from timestepper.errors import ClusterError, DistributedError

    try:
        yield
    except (ClusterError, DistributedError) as error:
        warn(error)


def _submit(
    runs: "list[Run]", out: Path, cluster: Cluster, options: dict[str, str], jobs: int, processes: int | None
) -> None:
    """Hand over what is not finished, and say where all runs stand."""
    from timestepper.runs.resume import refuse_other_images
    from timestepper.runs.run import FINISHED
    from timestepper.sweeps.cluster import submit
    from timestepper.sweeps.jobs import look
    from timestepper.sweeps.plan import Shared

    look(runs)
    left, dataset = [], Shared().dataset
    for run in runs:
        run.results = run.results and run.results.absolute()
        if run.state == FINISHED:
            refuse_other_images(run, dataset)
            run.publish()
        else:
            left.append(run)
    work = functools.partial(_bring_to_end, jobs=jobs, debug="--debug" in sys.argv)
    submit(left, out, work, cluster=cluster, options=options, jobs=jobs, processes=processes)
    show_states(runs, out)


def _bring_to_end(runs: "list[Run]", jobs: int, debug: bool) -> int:
    """What a job does; it reads this before it understands signals, so torch is not loaded until it is called."""
    from timestepper.sweeps import one_gpu

    return one_gpu.bring_to_end(runs, jobs=jobs, debug=debug)


def _train(runs: "list[Run]", chosen: "list[Run]", jobs: int, processes: int | None, parent: int | None) -> int:
    """Train the chosen ones of all runs here, or in processes of their own; the exit code."""
    from timestepper.engine.signals import Signals

    if not chosen:
        return 0
    signals = Signals().install()
    try:
        from timestepper.sweeps import several_gpus

        shares = several_gpus.shares(chosen, processes)
        if len(shares) > 1 or (processes or 1) > 1:
            arguments = sys.argv[sys.argv.index("sweep") + 1 :]
            return several_gpus.spread(arguments, [[runs.index(run) for run in share] for share in shares], signals)
        from timestepper.sweeps import one_gpu

        debug, plain = "--debug" in sys.argv, parent is not None
        return one_gpu.bring_to_end(chosen, signals, jobs=jobs, debug=debug, parent=parent, plain=plain)
    finally:
        signals.restore()


def _without_record(runs: "list[Run]", results: Path | None) -> "list[Run]":
    """The runs that are to be trained, or measured on weights that are here; what is to be said of the others is."""
    if results is None:
        return runs
    from timestepper import records
    from timestepper.recipe.load import identity
    from timestepper.records.diverged import skipped
    from timestepper.sweeps import reproduce

    (known, problems), (failed, damaged) = records.load_records(results), records.load_diverged(results)
    for problem in problems + damaged:
        warn(problem)
    reproduce.plan(runs, known, failed)
    for run in runs:
        if run.state == reproduce.UNMEASURED:
            path = next(
                record.path for record in known if identity(record.recipe) == run.identity and not record.changed
            )
            warn(f"{path} lacks {run.message}, and {run.path}, which has the weights, is gone")
    left = [run for run in runs if run.state not in (*reproduce.SETTLED, reproduce.UNMEASURED)]
    if recorded := sum(run.state in (reproduce.DONE, reproduce.UNMEASURED) for run in runs):
        tell(f"{recorded} of {len(runs)} runs have a record in {results} and are skipped")
    if diverged := len(runs) - len(left) - recorded:
        tell(skipped(diverged, len(runs), results))
    return left
