"""Where each run of a set stands, and how long what is left is expected to take."""

import json
from dataclasses import replace

import pytest

from timestepper.experiment.load import as_dict, load
from timestepper.experiment.reproduce import DONE, FINISHED, INTERRUPTED, MISSING, UNMEASURED, plan
from timestepper.experiment.sets import Wanted

WANTED = Wanted(load("smoke/digits", ["run.epochs=10"]), "smoke/digits", 5.0, ("noise", "stability"), ("mini",))


def recorded(*changes, device="NVIDIA H200", seconds=7200.0, **measured):
    recipe = as_dict(load("smoke/digits", ["run.epochs=10", *changes]))
    return {"recipe": recipe, "device": device, "wall_seconds": seconds, **measured}


def only(records, runs):
    (step,) = plan([WANTED], records, runs)
    return step.state, step.hours, step.progress


def test_a_run_is_done_once_its_record_has_all_measurements(tmp_path):
    assert only([recorded(noise={}, stability={})], tmp_path) == (DONE, 0.0, "")
    assert only([recorded(noise={})], tmp_path) == (UNMEASURED, 0.0, "stability")
    (tmp_path / WANTED.folder).mkdir()
    (tmp_path / WANTED.folder / "record.json").touch()
    assert only([recorded(noise={})], tmp_path) == (FINISHED, 0.0, "")
    assert only([], tmp_path) == (FINISHED, 0.0, "")


def test_an_interrupted_run_has_its_rest_to_go(tmp_path):
    assert only([], tmp_path) == (MISSING, 5.0, "")
    (tmp_path / WANTED.folder).mkdir()
    status = {"state": "interrupted", "step": 20, "steps": 100}
    (tmp_path / WANTED.folder / "status.json").write_text(json.dumps(status))
    assert only([], tmp_path) == (INTERRUPTED, pytest.approx(4.0), "20%")


def test_a_run_of_another_seed_is_another_run(tmp_path):
    assert only([recorded("run.seed=1", noise={}, stability={})], tmp_path)[0] == MISSING


def test_the_expected_time_is_what_such_runs_took_per_epoch_on_a_gpu(tmp_path):
    """2 hours for 10 epochs and three times as long for 30; runs that were slower, beside others, do not count."""
    alike = [recorded("run.seed=1", seconds=1e6), recorded("run.seed=2", seconds=1e5), recorded("run.epochs=20")]
    alike[2]["wall_seconds"] = 14400.0
    assert only(alike, tmp_path)[1] == pytest.approx(2.0)
    longer = replace(WANTED, recipe=load("smoke/digits", ["run.epochs=30"]))
    assert plan([longer], alike, tmp_path)[0].hours == pytest.approx(6.0)


@pytest.mark.parametrize(
    "other",
    [
        recorded("run.seed=1", device="CPU, 8 threads"),
        recorded("run.seed=1", "data.batch_size=128"),
        recorded("run.seed=1", "model.name=cifar/resnet14"),
    ],
    ids=["on a CPU", "another batch", "another network"],
)
def test_runs_of_another_kind_say_nothing_about_the_time(tmp_path, other):
    assert only([other], tmp_path)[1] == 5.0
