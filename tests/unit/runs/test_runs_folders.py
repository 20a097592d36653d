"""Where a run lies if nobody says so: runs of one recipe with other settings do not meet."""

from pathlib import Path

import pytest

from timestepper.engine.rundir import RunDirectory
from timestepper.recipe.load import dump, load
from timestepper.runs.run import default_folder


def folder(*changes, override=False):
    return str(default_folder("smoke/digits", load("smoke/digits", changes), override))


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("changes", "below"),
    [
        ([], ""),
        (["data.root=/elsewhere", "run.tensorboard=true", "runtime.device=cpu"], ""),  # what is learned stays the same
        (["controller.kind=none"], ""),  # which the recipe says itself
        (["controller.kind=lstm"], "/controller.kind=lstm"),
        (["run.seed=1", "controller.kind=lstm"], "/controller.kind=lstm,run.seed=1"),
        (["controller.kind=fixed", "controller.value=0.5"], "/controller.kind=fixed,controller.value=0.5"),
        (["schedule.milestones=[0.1, 0.2]"], "/schedule.milestones=-0.1,-0.2-"),
        (["controller.start=1.5"], ""),  # of what the plain network does not have
        (["controller.kind=lstm", "controller.start=1.5"], "/controller.kind=lstm,controller.start=1.5"),
        (["data.accumulate=4", "data.workers=2"], "/data.accumulate=4"),  # other losses: another run
        (["run.epochs=5", "run.epochs=3"], ""),  # the last one counts
        (["optimiser.lr=2e-1"], "/optimiser.lr=0.2"),
        (["optimiser.lr=0.20"], "/optimiser.lr=0.2"),
    ],
)
def test_what_is_overridden_names_the_folder(changes, below):
    assert folder(*changes) == f"runs/smoke/digits{below}"


def test_a_plain_run_of_a_recipe_that_says_more_of_its_controller_lies_where_it_always_did():
    Path("mine.toml").write_text('[controller]\nkind = "lstm"\ndescriptor = "visible"\nreduction = 2\n')
    assert (
        str(default_folder("mine.toml", load("mine.toml", ["controller.kind=none"])))
        == "runs/mine/controller.kind=none"
    )


@pytest.mark.parametrize("letter", ["0", "é", "漢"])
def test_long_names_stay_apart_and_fit_a_file_system(letter):
    long = [folder(f"model.options={letter * 110} {digit}") for digit in (6, 7)]
    assert long[0] != long[1]
    for name in long:
        Path(name).mkdir(parents=True)


def begun(path, *changes):
    """A run of these changes, as far as its folder tells."""
    Path(path).mkdir(parents=True)
    (Path(path) / "recipe.toml").write_text(dump(load("smoke/digits", changes)))


def test_a_run_of_an_older_version_goes_on_where_it_is():
    begun("runs/smoke/digits", "controller.kind=lstm", "run.seed=3")
    assert folder("controller.kind=lstm", "run.seed=3") == "runs/smoke/digits"
    assert folder("run.seed=3", "controller.kind=lstm", override=True) == "runs/smoke/digits"
    assert folder("controller.kind=lstm") == "runs/smoke/digits/controller.kind=lstm"


def test_what_changes_a_run_goes_on_with_its_own_and_never_with_another_that_nobody_named(cli):
    own = "runs/smoke/digits/controller.kind=lstm"
    assert folder("controller.kind=lstm", override=True) == own  # nothing there that could be meant
    begun("runs/smoke/digits")
    before = sorted(Path().rglob("*"))
    line = cli("train", "smoke/digits", "controller.kind=lstm", "--override").refused()
    assert line.startswith(f"{own} holds no run that --override could go on with")
    assert line.endswith("--run-dir runs/smoke/digits")
    assert "--run-dir" in cli("sweep", "smoke/digits", "controller.kind=lstm", "--override").refused()
    assert sorted(Path().rglob("*")) == before
    assert folder(override=True) == "runs/smoke/digits"  # a file that was edited
    begun(own, "controller.kind=lstm", "run.epochs=9")
    assert folder("controller.kind=lstm", override=True) == own


def test_runs_below_one_another_are_no_strangers():
    for below in ("controller.kind=lstm,run.seed=1", "seed0"):
        (Path("runs/x") / below).mkdir(parents=True)
    RunDirectory(Path("runs/x")).close()
