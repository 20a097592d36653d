"""What is measured on a finished network and kept in its record: noise and stability."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from timestepper import records
from timestepper.api import is_attached, step_sizes
from timestepper.engine.distributed import Group
from timestepper.engine.runtime import Runtime, choose_device
from timestepper.errors import CheckpointError, RecordError
from timestepper.files import with_checksum
from timestepper.recipe.schema import Recipe
from timestepper.records.record import NOISE_LEVELS
from timestepper.runs import build
from timestepper.runs.load import Trained, restore
from timestepper.stability import measured_growth, open_chain, proposition_1, robustness
from timestepper.terminal import warn

NOISE_DRAWS = 5
NOISE_BATCH = 1000  # 55 passes over the test set: a GPU is far faster with large batches, and no figure depends on it
STABILITY_IMAGES = 32


def complete(run: Path, results: Path, wanted: Iterable[str], recipe: Recipe | None = None) -> dict[str, Any]:
    """Add what is missing to the record of a finished run, each as soon as it is measured: neither a kill nor a second
    measurement that cannot be made costs the first. Its file in the results is replaced as a whole.

    ``recipe`` says where the data lie now, and on which device to measure; by default as when it was trained.
    """
    content = records.read(run)
    missing = [name for name in wanted if name not in content]
    records.publish(run, results)
    if missing:
        trained = restore(run, recipe)
        if trained.state["epochs_done"] < (last := len(content["epochs"])):
            raise CheckpointError(
                f"{trained.path} is of epoch {trained.state['epochs_done']}, and the run ended with epoch {last}: not "
                "measured; put its last checkpoint back"
            )
        runtime = build.runtime(trained.recipe, choose_device(trained.recipe.runtime.device), warn)
        trained.model.to(runtime.device)
    odd = []
    for name in missing:
        table = _MEASURES[name](trained, runtime)
        if not _finite(table):  # no report would read a record with it
            odd.append(name)
            continue
        content = with_checksum(records.read(run) | {name: table})
        records.write(content, run)
        records.publish(run, results)
    if odd:
        raise RecordError(f"{run}: {', '.join(odd)} came out as NaN or infinity; its record leaves it out")
    return content


def _finite(value: Any) -> bool:
    """Whether all numbers of a table are numbers."""
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _noise(trained: Trained, runtime: Runtime) -> dict[str, Any]:
    """Error and loss of every draw at every level."""
    batches = _batches(trained, runtime, NOISE_BATCH)
    scores = robustness.noise(trained.model, batches, NOISE_LEVELS, draws_each=NOISE_DRAWS)
    return {
        "levels": list(scores),
        "error": [[score.error for score in draws] for draws in scores.values()],
        "loss": [[score.loss for score in draws] for draws in scores.values()],
    }


def _stability(trained: Trained, runtime: Runtime) -> dict[str, Any]:
    """Logarithms of Proposition 1's factors and of the measured growth, block by block, on some test images."""
    images, labels = next(iter(_batches(trained, runtime, STABILITY_IMAGES)))
    chain = open_chain(trained.model, images)
    bound = proposition_1(chain)
    growth = {kind: measured_growth(chain, kind, labels=labels) for kind in ("random", "adversarial", "power")}
    return {
        "blocks": [block.path for block in bound.blocks],
        "log_bound": [block.log for block in bound.blocks],
        "log_growth": {kind: [_log(value) for value in found.blocks] for kind, found in growth.items()},
        "log_end_to_end": {kind: _log(found.end_to_end) for kind, found in growth.items()},
        "step_sizes": _mean_steps(trained.model),
    }


def _mean_steps(model: nn.Module) -> list[float]:
    """Mean step size of every block in depth order; nothing for a plain network."""
    if not is_attached(model):
        return []
    return [value for dt in step_sizes(model).values() for value in dt.mean(1).tolist()]


def _batches(trained: Trained, runtime: Runtime, size: int) -> Iterable[tuple[Any, Any]]:
    """The test set in batches of a size of the measurement's own; no larger than the set, which would be filled up."""
    recipe, images = trained.recipe, trained.data.test
    recipe = replace(recipe, data=replace(recipe.data, test_batch_size=min(size, len(images))))
    return build.test_loader(recipe, images, runtime, Group(device=runtime.device)).epoch(0)


def _log(value: float) -> float:
    """A block that lets nothing through has growth zero; its logarithm stays a number."""
    return math.log(max(value, 1e-30))


_MEASURES: dict[str, Callable[[Trained, Runtime], dict[str, Any]]] = {"noise": _noise, "stability": _stability}
