"""Sweeps over the smallest recipes, and what a run leaves behind."""

from pathlib import Path

from outcomes import remains

from timestepper.engine.signals import Signals
from timestepper.runs.run import Run
from timestepper.runs.start import train
from timestepper.sweeps.one_gpu import sweep
from timestepper.sweeps.plan import expand

__all__ = ["RECIPES", "SMALL", "alone", "entries", "remains", "run_sweep"]
SMALL = ("run.epochs=2", "data.batch_size=256", "run.tensorboard=false")
RECIPES = ("smoke/digits", "smoke/digits-lstm")


def entries(out: Path, *overrides: str, recipes=RECIPES, seeds=(), checkpoint_seconds=0.0) -> list[Run]:
    return expand(recipes, [*SMALL, *overrides], seeds, out, checkpoint_seconds)


def run_sweep(wanted: list[Run], signals: Signals | None = None, results: Path | None = None, **options) -> list[Run]:
    for run in wanted:
        run.results = results
    sweep(wanted, signals or Signals(), **options)
    return wanted


def alone(run: Run, folder: Path) -> Path:
    """The same run without others, as ``timestepper train`` starts it."""
    assert train(Run(run.recipe, run.name, folder)) == 0
    return folder
