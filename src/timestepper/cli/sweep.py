"""timestepper sweep: train several recipes at once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timestepper.terminal import tell

if TYPE_CHECKING:
    from timestepper.experiment.sweep_plan import Entry

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
    import os
    import sys

    from timestepper import torchrun
    from timestepper.engine.signals import Signals
    from timestepper.errors import RecipeError
    from timestepper.experiment.sweep_plan import expand, parse_seeds, split
    from timestepper.files import make_folder

    if torchrun.launched():
        raise RecipeError("sweep spreads its runs over the GPUs by itself; start it without torchrun")
    references, overrides = split(arguments)
    if not references:
        raise RecipeError(f"no recipe among {' '.join(arguments)}; name at least one, for example smoke/digits")
    if results is not None:
        make_folder(results)
    everything = expand(references, overrides, parse_seeds(seeds), out, checkpoint_seconds)
    numbers = list(map(int, share.split(","))) if share else _without_record(everything, results)
    if not numbers:
        return
    widen_device_queue(jobs)
    signals = Signals().install()
    try:
        from timestepper.experiment import sweep as sweeping
        from timestepper.experiment.sweep_ahead import kind_of
        from timestepper.experiment.sweep_spread import default_processes, shares, spread

        entries = [everything[number] for number in numbers]
        on_gpu = any(entry.recipe.runtime.device != "cpu" for entry in entries)
        wanted = 1 if share else min(processes or default_processes(on_gpu), len(entries))
        if wanted > 1:
            parts = shares({number: kind_of(everything[number].recipe) for number in numbers}, wanted)
            raise typer.Exit(spread(sys.argv[sys.argv.index("sweep") + 1 :], parts, signals))
        parent = os.getppid() if share else None
        options = sweeping.Options(jobs, override, results, debug="--debug" in sys.argv, parent=parent)
        runs = sweeping.sweep(entries, signals, options, plain=share is not None)
        tell("\n".join(sweeping.summary_lines(runs)))
        raise typer.Exit(sweeping.exit_code(runs, signals.stop))
    finally:
        signals.restore()


def widen_device_queue(jobs: int) -> None:
    """Let as many streams as runs reach the device side by side; by default CUDA folds them into eight.

    No more than that: processes that share a GPU through MPS also share its queues. CUDA reads it once, when torch
    starts it.
    """
    import os

    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", str(min(max(8, jobs), 32)))


def _without_record(entries: "list[Entry]", results: Path | None) -> list[int]:
    """Which of the runs have no sound record yet."""
    if results is None or not results.is_dir():
        return list(range(len(entries)))
    from timestepper.cli import gather
    from timestepper.experiment.sets import identity
    from timestepper.records import load_records

    records, problems = load_records(results)
    gather.warn(problems)
    recorded = {identity(record.recipe) for record in records}
    left = [number for number, entry in enumerate(entries) if entry.identity not in recorded]
    if len(left) < len(entries):
        tell(f"{len(entries) - len(left)} of {len(entries)} runs have a record in {results} and are skipped")
    return left
