"""Whether a run may go on: the same recipe, or a change that was asked for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from timestepper.errors import RecipeError
from timestepper.recipe.load import differences, loads
from timestepper.recipe.schema import Recipe
from timestepper.runs import build
from timestepper.runs.run import Run


def reconcile(state: dict[str, Any], run: Run, samples: int, world: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """The state to go on from under the run's recipe; raises where it was begun under another one.

    ``run.epochs`` may change without ``override`` where every learning rate used so far stays what it was, because the
    run then ends as if it had had so many epochs from the start.
    """
    recipe, where = run.recipe, run.path
    earlier = loads(state["recipe"], f"{where}: recipe of the checkpoint")
    changed = differences(earlier, recipe)
    if not run.override:
        changed = [
            change for change in changed if change[0] != "run.epochs" or not _may_last(earlier, recipe, state, samples)
        ]
    if recipe.run.epochs < state["epochs_done"]:
        raise RecipeError(
            f"{where} has done {state['epochs_done']} epochs, more than run.epochs={recipe.run.epochs}; ask for more "
            "epochs or use another --run-dir"
        )
    if changed:
        text = ", ".join(f"{key} {old!r} -> {new!r}" for key, old, new in changed)
        if not run.override:
            raise RecipeError(
                f"{where} was begun with another recipe: {text}; use the same values, another --run-dir, or --override "
                "to go on with the new ones"
            )
        tell(f"going on with another recipe: {text}")
    if state["world"] != world:
        tell(f"going on with {world} processes after {state['world']}; the global batch stays {recipe.data.batch_size}")
    if earlier.data.batch_size == recipe.data.batch_size:
        return state
    # Steps are counted in batches: with another batch size, go on at the beginning of the epoch.
    step = state["epochs_done"] * (samples // recipe.data.batch_size)
    tell(f"another batch size: going on at the beginning of epoch {state['epochs_done'] + 1}, now step {step}")
    return {**state, "step": step, "interval": [], "epoch": []}


def _may_last(earlier: Recipe, recipe: Recipe, state: dict[str, Any], samples: int) -> bool:
    per_epoch = samples // earlier.data.batch_size
    longer = replace(earlier, run=replace(earlier.run, epochs=recipe.run.epochs))
    before, after = build.schedule(earlier, per_epoch), build.schedule(longer, per_epoch)
    return before.agrees(after, state["step"])
