"""Where each run of a set stands, and how long what is left is expected to take."""

import json
import os
import socket
from dataclasses import replace

import pytest

from timestepper.cli.gather import Collection
from timestepper.files import with_checksum
from timestepper.recipe.load import as_dict, load
from timestepper.records.diverged import Diverged
from timestepper.records.record import Final, Noise, Outcome, Record, Stability
from timestepper.runs.run import Run
from timestepper.sweeps.reproduce import (
    DIVERGED,
    DONE,
    INTERRUPTED,
    MISSING,
    OCCUPIED,
    RUNNING,
    UNMEASURED,
    UNRECORDED,
    bring_to_end,
    plan,
)

FOLDER = "the-run"


NOISE, STABILITY = Noise((0.0,), ((0.5,),), ((1.0,),)), Stability((), (), {}, {})


def recorded(*changes, device="NVIDIA H200", seconds=7200.0, gpu_seconds=None, noise=None, stability=None):
    recipe = as_dict(load("smoke/digits", ["run.epochs=10", *changes]))
    measured = {"final": Final(Outcome(0.5)), "noise": noise, "stability": stability}
    times = {"wall_seconds": seconds, "gpu_seconds": gpu_seconds, "loss": [0.0] * recipe["run"]["epochs"]}
    return Record(kind="training", **facts_of(recipe), device=device, **measured, **times)


def facts_of(recipe):
    """What a result says of its run."""
    seed = recipe["run"]["seed"]
    return {"name": "", "seed": seed, "recipe": recipe, "data_sha256": "", "commit": "", "versions": {}}


def only(records, runs, *changes):
    recipe = load("smoke/digits", ["run.epochs=10", *changes])
    run = Run(recipe, "smoke/digits", runs / FOLDER, hours=5.0, measures=("noise", "stability"), sets=("mini",))
    plan([run], records)
    return run.state, run.hours, run.message


def test_a_run_is_done_once_its_record_has_all_measurements(tmp_path):
    assert only([recorded(noise=NOISE, stability=STABILITY)], tmp_path) == (DONE, 0.0, "")
    assert only([recorded(noise=NOISE)], tmp_path) == (UNMEASURED, 0.0, "stability")
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "record.json").touch()
    assert only([recorded(noise=NOISE)], tmp_path) == (UNRECORDED, 0.0, "with stability")
    assert only([], tmp_path) == (UNRECORDED, 0.0, "")


def test_an_interrupted_run_has_its_rest_to_go(tmp_path):
    assert only([], tmp_path) == (MISSING, 5.0, "")
    (tmp_path / FOLDER).mkdir()
    status = {"state": "interrupted", "step": 20, "steps": 100}
    (tmp_path / FOLDER / "status.json").write_text(json.dumps(status))
    assert only([], tmp_path) == (INTERRUPTED, pytest.approx(4.0), "20%")


@pytest.mark.parametrize(
    ("step", "steps", "hours", "progress"),
    [
        (5000, 100, 0.0, "100%"),
        (-20, 100, 5.0, "0%"),
        (20, 0, 5.0, "0%"),
        (20, -100, 5.0, "0%"),
    ],
)
def test_no_status_gives_more_or_less_than_a_run_to_go(tmp_path, step, steps, hours, progress):
    (tmp_path / FOLDER).mkdir()
    status = {"state": "interrupted", "step": step, "steps": steps}
    (tmp_path / FOLDER / "status.json").write_text(json.dumps(status))
    assert only([], tmp_path) == (INTERRUPTED, hours, progress)


@pytest.mark.parametrize("step", ["null", "NaN", "1" + "0" * 400])
def test_a_status_that_no_run_writes_is_none(tmp_path, step):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "status.json").write_text(f'{{"state": "interrupted", "step": {step}, "steps": 9}}')
    assert only([], tmp_path) == (MISSING, 5.0, "")


def test_a_run_that_another_process_trains_is_not_called_interrupted(tmp_path):
    (tmp_path / FOLDER).mkdir()
    status = {"state": "running", "pid": os.getppid(), "host": socket.gethostname(), "step": 20, "steps": 100}
    (tmp_path / FOLDER / "status.json").write_text(json.dumps(status))
    assert only([], tmp_path) == (RUNNING, pytest.approx(4.0), "20%")
    gone = {**status, "pid": 2**22 + 1}  # no process has that number
    (tmp_path / FOLDER / "status.json").write_text(json.dumps(gone))
    assert only([], tmp_path)[0] == INTERRUPTED
    (tmp_path / FOLDER / "status.json").write_text(json.dumps({**status, "host": "elsewhere"}))
    assert only([], tmp_path)[0] == INTERRUPTED  # and maybe killed with its machine


def test_the_record_of_another_run_does_not_finish_this_one(tmp_path):
    (tmp_path / FOLDER).mkdir()
    path = tmp_path / FOLDER / "record.json"
    path.write_text(json.dumps(with_checksum({"recipe": recorded("runtime.device=cpu").recipe})))
    assert only([], tmp_path) == (UNRECORDED, 0.0, "")  # where it was computed makes no other run
    path.write_text(json.dumps(with_checksum({"recipe": recorded("optimiser.lr=0.5").recipe})))
    assert only([], tmp_path) == (OCCUPIED, 5.0, "")
    path.write_text(json.dumps(with_checksum({"no": "recipe"})))
    assert only([], tmp_path) == (OCCUPIED, 5.0, "")
    assert only([recorded(noise=NOISE)], tmp_path) == (UNMEASURED, 0.0, "stability")


def test_a_run_of_another_seed_is_another_run(tmp_path):
    assert only([recorded("run.seed=1", noise=NOISE, stability=STABILITY)], tmp_path)[0] == MISSING


def test_the_expected_time_is_the_set_s_or_less_where_such_runs_had_less_of_a_gpu(tmp_path):
    """5 hours by the set; 2 for 10 epochs of a GPU's time, and by the clock nothing is known: cards are shared.

    The usual share counts, and that of the same controller: one lucky run, or a cheaper kind, says little.
    """
    usual = recorded("run.epochs=20", seconds=1e6, gpu_seconds=14400.0)
    had = [usual, recorded("run.seed=1", gpu_seconds=1e6), recorded("run.seed=2", gpu_seconds=1.0)]
    assert only(had[1:2], tmp_path)[1] == 5.0  # among processes, too
    assert only(had, tmp_path)[1] == pytest.approx(2.0)
    assert only([recorded("controller.kind=lstm", gpu_seconds=1.0)], tmp_path)[1] == 5.0
    assert only(had, tmp_path, "run.epochs=20", "run.seed=4")[1] == pytest.approx(4.0)


def test_a_card_that_was_shared_does_not_make_what_is_printed_longer(tmp_path):
    """ResNet-32 and 110 took 7 and 22 minutes by the clock; alone they take 2 and 6."""
    found = Collection(tmp_path, tmp_path / "runs")
    beside = [recorded("model.name=cifar/resnet32", "data.name=cifar10", "data.batch_size=128", seconds=420.0)]
    beside += [recorded("model.name=cifar/resnet110", "data.name=cifar10", "data.batch_size=128", seconds=1320.0)]
    found.records = [replace(record, loss=[0.0] * 120) for record in beside]
    table = found.plan_table("depth", found.plan("depth"))
    told = {str(row[0]).partition(",")[0]: str(row[-1]) for row in table.rows}
    assert told == {"ResNet-32": "10 min", "ResNet-110": "30 min"}  # of five seeds
    assert table.caption == "depth: 0 of 30 runs done, about 2.0 h of GPU time to go"


@pytest.mark.parametrize(
    "other",
    [
        recorded("run.seed=1"),
        recorded("run.seed=1", "data.batch_size=128", gpu_seconds=60.0),
        recorded("run.seed=1", "model.name=cifar/resnet14", gpu_seconds=60.0),
    ],
    ids=["by the clock alone", "another batch", "another network"],
)
def test_runs_of_another_kind_say_nothing_about_the_time(tmp_path, other):
    assert only([other], tmp_path)[1] == 5.0


def test_a_run_that_diverged_is_not_trained_again(tmp_path, capsys):
    recipe = load("smoke/digits", ["run.epochs=10"])
    run = Run(recipe, "smoke/digits", tmp_path / FOLDER, hours=5.0)
    failed = Diverged(kind="diverged", **facts_of(as_dict(recipe)), device="", step=7, error="nan")
    plan([run], [], [failed])
    assert (run.state, run.hours, run.message) == (DIVERGED, 0.0, "at update 7")
    assert bring_to_end([run], tmp_path / "results") == 0
    told = f"1 of 1 runs diverged and are skipped; to train them again, remove their files in {tmp_path}"
    assert told in capsys.readouterr().out
    assert not run.path.exists()
    plan([run], [recorded()], [failed])
    assert run.state == DONE
