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
        (["controller.start=1.5"], "/controller.start=1.5"),
    ],
)
def test_what_is_overridden_names_the_folder(changes, below):
    assert folder(*changes) == f"runs/smoke/digits{below}"


def test_long_names_stay_apart_and_fit_a_file_system():
    long = [folder(f"schedule.milestones=[{', '.join(['0.5'] * 60)}, 0.{digit}]") for digit in (6, 7)]
    assert long[0] != long[1]
    assert all(len(Path(name).name) < 150 for name in long)


def test_a_run_of_an_older_version_and_one_that_changes_its_recipe_go_on_where_they_are():
    whole = Path("runs/smoke/digits")
    whole.mkdir(parents=True)
    (whole / "recipe.toml").write_text(dump(load("smoke/digits", ["controller.kind=lstm", "run.seed=3"])))
    assert folder("controller.kind=lstm", "run.seed=3") == str(whole)
    assert folder("controller.kind=lstm") == f"{whole}/controller.kind=lstm"
    assert folder("controller.kind=lstm", override=True) == str(whole)


def test_runs_below_one_another_are_no_strangers():
    for below in ("controller.kind=lstm,run.seed=1", "seed0"):
        (Path("runs/x") / below).mkdir(parents=True)
    RunDirectory(Path("runs/x")).close()
