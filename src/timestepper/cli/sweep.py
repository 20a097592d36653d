"""timestepper sweep: train several recipes at once."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timestepper.terminal import tell

if TYPE_CHECKING:
    from timestepper.runs.run import Run

CHECKPOINT_SECONDS = 120.0


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
    processes: Annotated[int | None, typer.Option(min=1, help="by default one per GPU")] = None,
    checkpoint_seconds: Annotated[
        float,
        typer.Option(min=0, help="time between checkpoints, in place of what the recipes say; 0: only at the end"),
    ] = CHECKPOINT_SECONDS,
    override: Annotated[bool, typer.Option("--override", help="continue although a recipe has changed")] = False,
    results: Annotated[
        Path | None, typer.Option(help="also write the records of finished runs here, and skip what has one here")
    ] = None,
    share: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train several recipes at once on each GPU: faster than one after the other, each as if it were alone.

    Stop it at any time; the same command goes on with what was interrupted and skips what is finished. A run that fails
    is reported and leaves the others alone; the exit code is then 1.
    """
    from timestepper import torchrun
    from timestepper.errors import RecipeError
    from timestepper.files import make_folder
    from timestepper.sweeps.plan import expand, parse_seeds, split

    if torchrun.launched():
        raise RecipeError("sweep spreads its runs over the GPUs by itself; start it without torchrun")
    references, overrides = split(arguments)
    if not references:
        raise RecipeError(f"no recipe among {' '.join(arguments)}; name at least one, for example smoke/digits")
    runs = expand(references, overrides, parse_seeds(seeds), out, checkpoint_seconds)
    for run in runs:
        run.override, run.results = override, results
    if results is not None:
        make_folder(results)
    chosen = [runs[int(number)] for number in share.split(",")] if share else _without_record(runs, results)
    raise typer.Exit(_train(runs, chosen, jobs, 1 if share else processes, os.getppid() if share else None))


def _train(runs: "list[Run]", chosen: "list[Run]", jobs: int, processes: int | None, parent: int | None) -> int:
    """Train the chosen ones of all runs here, or in processes of their own; the exit code."""
    from timestepper.engine.signals import Signals

    if not chosen:
        return 0
    widen_device_queue(jobs)
    signals = Signals().install()
    try:
        from timestepper.sweeps import one_gpu, several_gpus

        shares = several_gpus.shares(chosen, processes)
        if len(shares) > 1:
            arguments = sys.argv[sys.argv.index("sweep") + 1 :]
            return several_gpus.spread(arguments, [[runs.index(run) for run in share] for share in shares], signals)
        one_gpu.sweep(chosen, signals, jobs=jobs, debug="--debug" in sys.argv, parent=parent, plain=parent is not None)
        tell("\n".join(one_gpu.summary_lines(chosen)))
        return one_gpu.exit_code(chosen, signals.stop)
    finally:
        signals.restore()


def widen_device_queue(jobs: int) -> None:
    """Let as many streams as runs reach the device side by side; by default CUDA folds them into eight.

    No more than that: processes that share a GPU through MPS also share its queues. CUDA reads it once, when torch
    starts it.
    """
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(min(max(8, jobs), 32)))


def _without_record(runs: "list[Run]", results: Path | None) -> "list[Run]":
    """The runs that have no sound record yet."""
    if results is None:
        return runs
    from timestepper import records
    from timestepper.cli import gather
    from timestepper.recipe.load import identity

    known, problems = records.load_records(results)
    gather.warn(problems)
    recorded = {identity(record.recipe) for record in known}
    left = [run for run in runs if run.identity not in recorded]
    if len(left) < len(runs):
        tell(f"{len(runs) - len(left)} of {len(runs)} runs have a record in {results} and are skipped")
    return left
