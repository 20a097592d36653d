"""The network of a run, from its newest sound checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from timestepper import names
from timestepper.engine.checkpoint import Checkpoints, check, check_fit
from timestepper.engine.rundir import CHECKPOINTS, RECIPE, check_run
from timestepper.errors import CheckpointError, RecipeError
from timestepper.recipe.load import import_controller, load_file
from timestepper.recipe.schema import Recipe
from timestepper.runs import build
from timestepper.runs.resume import other_images, told
from timestepper.terminal import warn


@dataclass(frozen=True)
class Trained:
    """A network with the weights of a run's newest sound checkpoint."""

    recipe: Recipe
    model: nn.Module
    state: dict[str, Any]
    data: Any
    path: Path


def restore(
    run: Path, recipe: Recipe | None = None, data: Any = None, tell: Callable[[str], None] = warn, blind: bool = False
) -> Trained:
    """The network of a run directory, on the CPU. A ``blind`` one needs no images: they may be on another machine."""
    if recipe is None:
        check_run(run)
        recipe = _recipe(run / RECIPE)
    if data is None and not blind:
        data = build.dataset(recipe)
    found = Checkpoints(run / CHECKPOINTS).latest(tell)
    if found is None:
        raise CheckpointError(
            f"{run} has no checkpoint; put back those that it had, or train it (a finished run: move it away first)"
        )
    path, state = found
    images = _shape(path, state) if data is None else data.train
    check(path, state, build.identity(recipe, images))
    model = build.network(recipe, images)
    check_fit(path, state, model, None)
    if data is not None and (changed := other_images(state.get("images", {}), data.facts)):
        tell(f"{run} was trained with other images: {told(changed)}")
    model.load_state_dict(state["model"])
    return Trained(recipe, model, state, data, path)


def _recipe(path: Path) -> Recipe:
    """The recipe of a run, its controller imported if the user allows it: the run may be a stranger's."""
    recipe = load_file(path)
    module = recipe.controller.module
    if module is not None and not names.may_import(module):
        raise RecipeError(
            f"{path} needs the Python module {module!r}, and code is not run because a file asks for it; if you trust "
            f"it, set {names.MODULES}={module}"
        )
    import_controller(recipe, path)
    return recipe


def _shape(path: Path, state: dict[str, Any]) -> SimpleNamespace:
    """What a network must know of its images, from the checkpoint."""
    identity = state["identity"]
    if not {"classes", "channels"} <= identity.keys():
        raise CheckpointError(f"{path} does not say how many classes and channels its images have; train the run again")
    return SimpleNamespace(classes=identity["classes"], input_shape=(identity["channels"],))
