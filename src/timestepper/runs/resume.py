"""Whether a run may go on: the same recipe, or a change that was asked for."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from timestepper.data import Dataset
from timestepper.errors import DataError, RecipeError
from timestepper.recipe.load import differences, loads
from timestepper.recipe.schema import Recipe
from timestepper.runs import build
from timestepper.runs.run import Run


def reconcile(
    state: dict[str, Any],
    run: Run,
    images: Mapping[str, Any],
    samples: int,
    world: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The state to go on from under the run's recipe; raises where it was begun under another one.

    Or with other images, as far as the state says which: that of an older version does not.

    ``run.epochs`` may change without ``override`` where every learning rate used so far stays what it was, because the
    run then ends as if it had had so many epochs from the start. After any other change, of the recipe or of the
    images, it is no run of its recipe any more, and the state says for ever what was ``changed``.
    """
    recipe, where = run.recipe, run.path
    earlier = loads(state["recipe"], f"{where}: recipe of the checkpoint")
    changed = [
        change
        for change in differences(earlier, recipe)
        if change[0] != "run.epochs" or not _may_last(earlier, recipe, state, samples)
    ]
    others = other_images(state.get("images", {}), images)
    changed += others
    if changed and state["step"]:
        now = f"{told(changed)} at update {state['step']}"
        state = {**state, "changed": "; ".join(filter(None, (state.get("changed"), now)))}
    if recipe.run.epochs < state["epochs_done"]:
        raise RecipeError(
            f"{where} has done {state['epochs_done']} epochs, more than run.epochs={recipe.run.epochs}; ask for more "
            "epochs or use another --run-dir"
        )
    if changed:
        text = told(changed)
        what = "another recipe" if len(changed) > len(others) else "other images"
        if not run.override:
            raise RecipeError(
                f"{where} was begun with {what}: {text}; use the same values, another --run-dir, or --override "
                "to go on with the new ones"
            )
        tell(f"going on with {what}: {text}")
    if state["world"] != world:
        tell(f"going on with {world} processes after {state['world']}; the global batch stays {recipe.data.batch_size}")
    more = any(fact == "images to train on" for fact, _, _ in others)  # or fewer; a bad one may also have been replaced
    if earlier.data.batch_size == recipe.data.batch_size and not more:
        return state
    # Steps are counted in batches: where these are others, go on at the beginning of the epoch.
    step = state["epochs_done"] * (samples // recipe.data.batch_size)
    why = "another number of images" if more else "another batch size"
    tell(f"{why}: going on at the beginning of epoch {state['epochs_done'] + 1}, now step {step}")
    return {**state, "step": step, "interval": [], "epoch": []}


def other_images(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs, told as it is for recipes; nothing where one of them is not known."""
    if not earlier or not now:
        return []
    return [(fact, earlier.get(fact), now[fact]) for fact in now if earlier.get(fact) != now[fact]]


def refuse_other_images(run: Run, open_data: Callable[[Recipe], Dataset]) -> None:
    """A finished run is not that of another image folder; where there is none any more, there is nothing to compare."""
    if not run.images:  # of a set that is told by its name
        return
    with contextlib.suppress(DataError):
        if changed := other_images(run.images, open_data(run.recipe).facts):
            raise RecipeError(
                f"{run.path} is finished, and was trained with other images: {told(changed)}; give data.root the same "
                "ones, or use another --run-dir"
            )


def told(changed: list[tuple[str, Any, Any]]) -> str:
    """Differences in a line."""
    return ", ".join(f"{key} {old!r} -> {new!r}" for key, old, new in changed)


def _may_last(earlier: Recipe, recipe: Recipe, state: dict[str, Any], samples: int) -> bool:
    per_epoch = samples // earlier.data.batch_size
    longer = replace(earlier, run=replace(earlier.run, epochs=recipe.run.epochs))
    before, after = build.schedule(earlier, per_epoch), build.schedule(longer, per_epoch)
    return before.agrees(after, state["step"])
