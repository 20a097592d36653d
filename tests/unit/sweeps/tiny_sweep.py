"""Sweeps over the smallest recipes, and what a run leaves behind."""

import json
from pathlib import Path

from timestepper.engine.signals import Signals
from timestepper.runs.run import Run
from timestepper.runs.start import train
from timestepper.sweeps.one_gpu import sweep
from timestepper.sweeps.plan import expand

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


def remains(folder: Path) -> dict[str, object]:
    """All that must not depend on how a run was brought to its end."""
    record = json.loads((folder / "record.json").read_text())
    last = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    return {
        "weights": (folder / "weights.safetensors").read_bytes(),
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "checkpoint": (last.name, last.read_bytes()),
        "final": record["final"],
        "step sizes": record["step_sizes"],
    }
