"""A run directory and a recipe that do not belong together: T25, T26."""

from pathlib import Path

import pytest
import runs
import torch
from stopping import drive

from timestepper.engine.checkpoint import FORMAT, read

SHORT = runs.SHORT


@pytest.fixture
def stopped_run(tmp_path: Path) -> Path:
    """A run that stopped at step 7 of 10; the learning rate fell after step 5."""
    run = tmp_path / "run"
    assert drive(runs.train(run, recipe=SHORT), signal_after=8) == 7
    return run


def untouched(run: Path, cli, *arguments: str) -> str:
    """The message of a refused resume, after which the run goes on as if it had not been tried."""
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}
    message = cli(*arguments).refused()
    assert {path: path.read_bytes() for path in before} == before
    return message


@pytest.mark.parametrize(
    ("change", "was", "asked"),
    [
        ("model.name=cifar/resnet14", "cifar/resnet8", "cifar/resnet14"),
        ("model.name=cifar/densenet40", "cifar/resnet8", "cifar/densenet40"),
        ("controller.kind=lstm", "controller none", "controller lstm"),
    ],
)
def test_t25_another_network_is_refused_before_it_is_loaded(change, was, asked, stopped_run, cli):
    message = untouched(stopped_run, cli, *runs.train(stopped_run, change, "--override", recipe=SHORT))
    found, wanted = message.split("you asked for")
    assert "checkpoint is" in found
    assert was in found
    assert asked in wanted


def test_t25_another_number_of_classes(tmp_path, image_folder, cli):
    run = tmp_path / "run"
    recipe = [*runs.folder_recipe(image_folder), "data.workers=0", "run.epochs=1"]
    assert drive(runs.train(run, recipe=recipe), signal_after=1) == 2
    fewer = runs.write_digit_folder(tmp_path / "fewer", classes=5)
    found, wanted = untouched(run, cli, *runs.train(run, f"data.root={fewer}", recipe=recipe)).split("you asked for")
    assert "classes 10" in found
    assert "classes 5" in wanted


def test_t25_a_newer_format_is_refused(stopped_run, tmp_path, cli):
    for path in runs.checkpoints(stopped_run):
        torch.save({**read(path), "format": FORMAT + 1}, path)
    for arguments in (
        runs.train(stopped_run, recipe=SHORT),
        ["evaluate", str(stopped_run)],
        ["fold", str(stopped_run), "-o", str(tmp_path / "x.safetensors")],
    ):
        message = untouched(stopped_run, cli, *arguments)
        assert f"format {FORMAT + 1}" in message
        assert "update timestepper" in message


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("data.batch_size=128", "data.batch_size 256 -> 128"),
        ("optimiser.lr=0.05", "optimiser.lr 0.1 -> 0.05"),
        ("run.seed=1", "run.seed 0 -> 1"),
        ("run.epochs=4", "run.epochs 2 -> 4"),
    ],
)
def test_t26_a_changed_recipe_is_refused_with_the_difference(change, difference, stopped_run, cli):
    message = untouched(stopped_run, cli, *runs.train(stopped_run, change, recipe=SHORT))
    assert difference in message
    assert "--override" in message
    outcome = cli(*runs.train(stopped_run, change, "--override", recipe=SHORT))
    assert outcome.code == 0, outcome.err
    assert difference in outcome.out
    assert runs.state_of(stopped_run) == "finished"


def test_t26_epochs_may_grow_where_the_learning_rates_stay(tmp_path, cli):
    run, longer = tmp_path / "run", tmp_path / "longer"
    constant = [*SHORT, "schedule.law=constant"]
    assert drive(runs.train(run, recipe=constant)) is None
    assert drive(runs.train(longer, "run.epochs=3", recipe=constant)) is None
    assert cli(*runs.train(run, "run.epochs=3", recipe=constant)).code == 0
    assert runs.differing(run, longer) == []


def test_t26_fewer_epochs_than_done(tmp_path, cli):
    run = tmp_path / "run"
    assert drive(runs.train(run, recipe=SHORT)) is None
    assert "has done 2 epochs" in untouched(run, cli, *runs.train(run, "run.epochs=1", "--override", recipe=SHORT))
