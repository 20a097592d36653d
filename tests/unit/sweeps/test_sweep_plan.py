from pathlib import Path

import pytest

from timestepper.errors import RecipeError
from timestepper.recipe.load import dump, load
from timestepper.runs.run import Run, set_folder
from timestepper.sweeps.plan import by_the_clock, expand, open_sets, parse_seeds, split
from timestepper.sweeps.several_gpus import device, shares

OUT = Path("out")


def labels(references, overrides=(), seeds=()):
    return [entry.label for entry in expand(references, overrides, seeds, OUT, 60.0)]


def test_arguments_are_told_apart_by_the_equals_sign():
    assert split(["smoke/digits", "run.epochs=2", "my.toml"]) == (["smoke/digits", "my.toml"], ["run.epochs=2"])


def test_a_recipe_that_lies_in_a_folder_named_after_overrides_is_a_recipe(tmp_path):
    recipe = tmp_path / "run.epochs=1" / "recipe.toml"
    recipe.parent.mkdir()
    recipe.touch()
    assert split([str(recipe), "run.seed=2"]) == ([str(recipe)], ["run.seed=2"])


def test_a_file_that_is_called_like_an_override_hides_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.epochs=1").touch()
    assert split(["smoke/digits", "run.epochs=1"]) == (["smoke/digits"], ["run.epochs=1"])


def test_more_runs_than_anybody_wants_are_refused():
    many = ",".join(map(str, range(1, 2001)))
    with pytest.raises(
        RecipeError, match=r"smoke/digits: these are 4,000,000 runs, more than 10,000; give fewer values"
    ):
        expand(["smoke/digits"], [f"run.seed={many}", f"run.epochs={many}"], [], OUT, 60.0)


def test_every_recipe_with_every_seed_has_a_folder_of_its_own():
    entries = expand(["smoke/digits", "smoke/digits-lstm"], ["run.epochs=2"], [0, 5], OUT, 60.0)
    assert [str(entry.path) for entry in entries] == [
        "out/smoke/digits/run.epochs=2/seed0",
        "out/smoke/digits/run.epochs=2/seed5",
        "out/smoke/digits-lstm/run.epochs=2/seed0",
        "out/smoke/digits-lstm/run.epochs=2/seed5",
    ]
    assert [entry.recipe.run.seed for entry in entries] == [0, 5, 0, 5]
    assert {entry.recipe.run.epochs for entry in entries} == {2}
    assert [entry.recipe.controller.kind for entry in entries] == ["none", "none", "lstm", "lstm"]


def test_several_values_make_several_runs_and_a_list_is_one_value():
    assert labels(["smoke/digits"], ["controller.kind=none,lstm", "model.name=cifar/resnet8,cifar/resnet14"]) == [
        "smoke/digits/controller.kind=none/model.name=cifar-resnet8",
        "smoke/digits/controller.kind=none/model.name=cifar-resnet14",
        "smoke/digits/controller.kind=lstm/model.name=cifar-resnet8",
        "smoke/digits/controller.kind=lstm/model.name=cifar-resnet14",
    ]
    assert labels(["smoke/digits"], ["schedule.milestones=[0.5,0.75]"]) == ["smoke/digits"]


@pytest.mark.parametrize(
    ("overrides", "seeds", "below"),
    [
        (["controller.kind=lstm"], [], ["/controller.kind=lstm"]),  # where train puts it too
        (["controller.kind=none", "data.root=/elsewhere"], [], [""]),
        (["run.seed=1", "controller.kind=lstm"], [], ["/controller.kind=lstm,run.seed=1"]),
        (["run.seed=1,2"], [], ["/run.seed=1", "/run.seed=2"]),
        (["run.seed=1,2"], [5], ["/seed5"]),
        (["controller.kind=none,lstm", "controller.kind=lstm"], [], ["/controller.kind=lstm"]),
        (["optimiser.lr=0.2,0.20,2e-1"], [], ["/optimiser.lr=0.2"]),
        (["run.epochs=2", "optimiser.lr=0.1,1"], [], [f"/run.epochs=2/optimiser.lr={rate}" for rate in ("0.1", "1.0")]),
    ],
)
def test_what_is_overridden_names_the_folder_once(overrides, seeds, below):
    assert labels(["smoke/digits"], overrides, seeds) == [f"smoke/digits{name}" for name in below]


def test_the_order_of_overrides_does_not_matter():
    overrides = ["model.name=cifar/resnet8,cifar/resnet14", "run.epochs=2", "controller.kind=none,lstm", "run.seed=3"]
    one, other = (labels(["smoke/digits"], given) for given in (overrides, overrides[::-1]))
    assert len(one) == 4
    assert sorted(one) == sorted(other)


@pytest.mark.parametrize(
    ("overrides", "seeds", "older", "own"),
    [
        (["controller.kind=lstm"], [], "", "/controller.kind=lstm"),
        (["run.epochs=2"], [4], "/seed4", "/run.epochs=2/seed4"),
        (["optimiser.lr=1e-1,1"], [], "/optimiser.lr=1e-1", "/optimiser.lr=0.1"),
        (
            ["model.name=cifar/resnet14,cifar/resnet20", "controller.kind=lstm,none"],
            [],
            "/model.name=cifar-resnet14/controller.kind=lstm",
            "/controller.kind=lstm/model.name=cifar-resnet14",
        ),
    ],
)
def test_a_run_of_an_older_version_goes_on_where_it_is_and_another_does_not_meet_it(
    overrides, seeds, older, own, tmp_path
):
    def first(*more):
        return expand(["smoke/digits"], [*overrides, *more], seeds, tmp_path, 60.0)[0]

    wanted, whole = first(), tmp_path / "smoke/digits"
    assert str(wanted.path) == f"{whole}{own}"
    (tmp_path / f"smoke/digits{older}").mkdir(parents=True)
    (tmp_path / f"smoke/digits{older}/recipe.toml").write_text(dump(wanted.recipe))
    assert str(first().path) == f"{whole}{older}"
    assert first().label == f"smoke/digits{older}"
    assert str(first("data.augment=none").path) != f"{whole}{older}"


def test_a_bad_recipe_is_refused_before_any_run_begins():
    with pytest.raises(RecipeError, match=r"optimiser\.lr"):
        expand(["smoke/digits"], ["optimiser.lr=0.1,fast"], [], OUT, 60.0)
    with pytest.raises(RecipeError, match="no recipe 'nonsense'"):
        expand(["smoke/digits", "nonsense"], [], [], OUT, 60.0)


def test_runs_save_by_the_clock_unless_told_otherwise():
    clocked = expand(["smoke/digits"], [], [], OUT, 60.0)[0].recipe.run
    assert (clocked.checkpoint_epochs, clocked.checkpoint_seconds) == (0, 60.0)
    often = by_the_clock(load("smoke/digits", ["run.checkpoint_steps=7"]), 60.0).run
    assert (often.checkpoint_steps, often.checkpoint_seconds) == (0, 60.0)
    own = expand(["smoke/digits"], ["run.checkpoint_epochs=3"], [], OUT, 60.0)[0].recipe.run
    assert (own.checkpoint_epochs, own.checkpoint_seconds) == (3, 0.0)


def test_the_same_run_comes_once_and_two_runs_never_share_a_folder(tmp_path):
    assert labels(["smoke/digits", "smoke/digits"], seeds=[1]) == ["smoke/digits/seed1"]
    for folder, epochs in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.toml").write_text(f"[run]\nepochs = {epochs}\n")
    with pytest.raises(RecipeError, match="share the folder"):
        labels([str(tmp_path / "a/mine.toml"), str(tmp_path / "b/mine.toml")])


def test_the_plain_network_is_trained_once_whatever_is_varied_of_its_controller():
    chosen = ["controller.kind=none,lstm", "controller.descriptor=mean,visible"]
    runs = expand(["smoke/digits"], chosen, [0], OUT, 60.0)
    told = [(run.recipe.controller.kind, run.recipe.controller.descriptor) for run in runs]
    assert told == [("none", "mean"), ("lstm", "mean"), ("lstm", "visible")]
    assert labels(["smoke/digits"], ["controller.module=gone"]) == ["smoke/digits"]


SET = """
set = "mine"
title = "Two kinds, two seeds"
seeds = [0, 1]

[[train]]
base = "smoke/digits"
vary = { "controller.kind" = ["none", "lstm"] }
hours = 0.1
"""


def test_a_set_of_runs_lies_where_reproduce_looks_for_it(tmp_path):
    (tmp_path / "mine.toml").write_text(SET)
    reference = str(tmp_path / "mine.toml")
    entries = expand([reference], ["run.epochs=2"], [], OUT, 60.0)
    wanted = open_sets(reference, overrides=("run.epochs=2",))
    assert len(entries) == 4
    assert [entry.path for entry in entries] == [OUT / run.label for run in wanted]
    assert [entry.identity for entry in entries] == [run.identity for run in wanted]
    chosen = expand([reference], [], [1], OUT, 60.0)
    assert [entry.recipe.run.seed for entry in chosen] == [1, 1]


def test_a_run_of_a_recipe_file_has_one_name_wherever_the_file_lies(tmp_path):
    """Its folder is found again on another machine; one that an older version named after the file goes on there."""
    found = []
    for place in ("here", "there"):
        (folder := tmp_path / place).mkdir()
        (folder / "own.toml").write_text(dump(load("smoke/digits")))
        (folder / "mine.toml").write_text(SET.replace("smoke/digits", str(folder / "own.toml")))
        found.append(open_sets(str(folder / "mine.toml"), out=tmp_path / "runs"))
    assert [run.path for run in found[0]] == [run.path for run in found[1]]
    assert {run.name for run in found[0]} == {"own"}
    older = tmp_path / "runs" / set_folder(str(tmp_path / "there" / "own.toml"), found[1][0].recipe)
    older.mkdir(parents=True)
    (older / "recipe.toml").write_text(dump(found[1][0].recipe))
    again = open_sets(str(tmp_path / "there" / "mine.toml"), out=tmp_path / "runs")
    assert [run.path for run in again] == [older, *(run.path for run in found[1][1:])]


def test_seeds_that_no_set_has_are_named(tmp_path):
    path = tmp_path / "mini.toml"
    path.write_text(SET)
    assert len(labels([str(path), "smoke/digits"], seeds=[1, 9])) == 4  # the recipe has each
    with pytest.raises(RecipeError, match=r"mini\.toml: no run has seed 5, 9, and of a set --seeds only chooses"):
        labels([str(path)], seeds=[1, 9, 5])


@pytest.mark.parametrize(("text", "seeds"), [("", []), ("0,1,2", [0, 1, 2]), ("3-5", [3, 4, 5]), ("7, 1-2", [7, 1, 2])])
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["a", "1.5", "-1", "3-1", "0-1000", "0-1000000000000", "9" * 5000])
def test_bad_seeds_are_named(text):
    with pytest.raises(RecipeError, match="--seeds"):
        parse_seeds(text)


@pytest.mark.parametrize(
    ("kinds", "processes", "parts"),
    [
        ("aaabbbccc", 1, [[0, 1, 2, 3, 4, 5, 6, 7, 8]]),
        ("aaabbbccc", 2, [[0, 1, 2, 6, 7, 8], [3, 4, 5]]),
        ("aaabbbaaaccc", 2, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]),
        ("aaaaa", 2, [[0, 1, 2], [3, 4]]),
        ("aaa", 3, [[0], [1], [2]]),
    ],
)
def test_runs_of_one_kind_stay_together_unless_they_are_too_many(kinds, processes, parts):
    runs = [
        Run(load("smoke/digits", [f"data.batch_size={ord(kind)}"]), "x", OUT / f"{n}") for n, kind in enumerate(kinds)
    ]
    assert [[int(run.path.name) for run in part] for part in shares(runs, processes)] == parts


def test_processes_on_a_cpu_have_one_thread_each_however_many_are_left(monkeypatch):
    """Another number of threads would give a run that goes on other bits."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    for told in ("", None):
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if told is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert device(0, 4) == device(2, 3) == device(0, 1) == {"OMP_NUM_THREADS": "1"}
    assert device(0, 1, several=False) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert device(0, 3) == {"OMP_NUM_THREADS": "7"}
