from pathlib import Path

import pytest

from timestepper.errors import RecipeError
from timestepper.recipe.load import dump, loads
from timestepper.runs.resume import reconcile
from timestepper.runs.run import Run

SAMPLES = 640


def recipe(*changes):
    return loads("", "test", ["run.epochs=4", *changes])


def go_on(before, after, *, step=15, done=1, override=False, world=1, samples=SAMPLES, earlier=None, images=None):
    """Reconcile a state of ``before`` (10 steps an epoch) with ``after``; the new state and what was said."""
    state = {"recipe": dump(before), "step": step, "epochs_done": done, "world": 1, "interval": [1.0], "epoch": [2.0]}
    state |= {"images": earlier or {}}
    told = []
    run = Run(after, "x", Path("runs/x"), override=override)
    return reconcile(state, run, images or {}, samples, world, told.append), told


def test_the_same_recipe_goes_on_silently():
    state, told = go_on(recipe(), recipe("data.workers=3", "run.checkpoint_steps=7", "runtime.compile=true"))
    assert state["step"] == 15
    assert told == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("data.batch_size=32", "data.batch_size 64 -> 32"),
        ("data.accumulate=2", "data.accumulate 1 -> 2"),
        ("optimiser.lr=0.2", r"optimiser\.lr 0\.1 -> 0\.2"),
        ("run.seed=9", r"run\.seed 0 -> 9"),
        ("schedule.law=cosine", r"schedule\.law 'steps' -> 'cosine'"),
        ("data.augment=shift", "data.augment 'none' -> 'shift'"),
    ],
)
def test_a_change_is_refused_with_a_diff_unless_asked_for(change, text):
    with pytest.raises(RecipeError, match=rf"runs/x was begun with another recipe: {text}; .*--override"):
        go_on(recipe(), recipe(change))
    _, told = go_on(recipe(), recipe(change), override=True)
    assert told[0].startswith("going on with another recipe: ")


@pytest.mark.parametrize(
    ("law", "step", "allowed"),
    [
        (["schedule.law=constant"], 35, True),
        (["schedule.every=2"], 35, True),
        ([], 20, True),  # the first drop, at half of the run, has not come yet
        ([], 21, False),
        (["schedule.law=cosine"], 5, False),
    ],
)
def test_epochs_may_grow_where_the_learning_rates_so_far_stay(law, step, allowed):
    before, after = recipe(*law), recipe(*law, "run.epochs=8")
    if allowed:
        _, told = go_on(before, after, step=step)
        assert told == []
    else:
        with pytest.raises(RecipeError, match=r"run\.epochs 4 -> 8"):
            go_on(before, after, step=step)
        go_on(before, after, step=step, override=True)


def test_a_batch_that_is_not_whole_is_no_step_of_an_epoch():
    before, after = recipe(), recipe("run.epochs=8")
    go_on(before, after, step=20, samples=700)
    with pytest.raises(RecipeError, match=r"run\.epochs 4 -> 8"):
        go_on(before, after, step=21, samples=700)


def test_epochs_may_not_shrink_below_what_is_done():
    constant = "schedule.law=constant"
    for override in (False, True):
        with pytest.raises(RecipeError, match=r"has done 3 epochs, more than run\.epochs=2"):
            go_on(recipe(constant), recipe(constant, "run.epochs=2"), step=30, done=3, override=override)


def test_another_batch_size_goes_on_at_the_beginning_of_the_epoch():
    state, told = go_on(recipe(), recipe("data.batch_size=32"), override=True)
    assert (state["step"], state["epochs_done"]) == (20, 1)
    assert state["interval"] == state["epoch"] == []
    assert "beginning of epoch 2, now step 20" in told[1]


def test_what_was_changed_stays_with_the_run():
    change = recipe("optimiser.lr=0.01")
    assert go_on(recipe(), change, override=True)[0]["changed"] == "optimiser.lr 0.1 -> 0.01 at update 15"
    for same in (recipe(), recipe("data.workers=3"), recipe("run.epochs=8")):  # it ends as if it had begun so
        assert "changed" not in go_on(recipe(), same, override=True)[0]
    assert "changed" not in go_on(recipe(), change, override=True, step=0, done=0)[0]  # it has learned nothing yet
    state = go_on(recipe(), recipe(), override=True, earlier={"bytes of images": 1}, images={"bytes of images": 2})[0]
    assert state["changed"] == "bytes of images 1 -> 2 at update 15"


def test_another_number_of_processes_is_told_in_one_line():
    state, told = go_on(recipe(), recipe(), world=2)
    assert state["step"] == 15
    assert told == ["going on with 2 processes after 1; the global batch stays 64"]
