import json
import os
import signal

import pytest
from processes import command_in, run
from tiny_sweep import SMALL, entries, remains, run_sweep
from watching import wait_for

from timestepper.cli.sweep import _without_record
from timestepper.recipe.load import load
from timestepper.runs.start import widen_device_queue

SWEEP = ["sweep", "smoke/digits", *SMALL, "run.epochs=8", "--seeds", "0,1", "--checkpoint-seconds", "0", "--out", "."]


def statuses(out):
    return [json.loads(path.read_text()) for path in sorted(out.rglob("status.json"))]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    wanted = entries(tmp_path_factory.mktemp("whole"), "run.epochs=8", recipes=("smoke/digits",), seeds=(0, 1))
    run_sweep(wanted)
    return [remains(entry.path) for entry in wanted]


@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one process", "two processes"])
def test_sigterm_saves_all_and_the_same_command_goes_on(tmp_path, more, uninterrupted):
    """With two processes only the first one is told, and passes it on."""
    with command_in(tmp_path, *SWEEP, *more) as first:
        wait_for(lambda: len(found := statuses(tmp_path)) == 2 and all(status["step"] >= 5 for status in found))
        first.send(signal.SIGTERM)
        assert first.wait() == 128 + signal.SIGTERM, first.stderr
        assert first.stdout.count("the same command goes on from there") >= 2
    for status in statuses(tmp_path):
        assert status["state"] == "interrupted"
        assert status["checkpoint"] == f"step-{status['step']:08d}.pt"
    second = run(tmp_path, *SWEEP, *more)
    assert second.returncode == 0, second.stderr
    assert second.stdout.count("going on at step") == 2
    assert [remains(tmp_path / f"smoke/digits/seed{seed}") for seed in (0, 1)] == uninterrupted


def test_mistakes_are_one_line(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, told in (
        (["run.epochs=2"], "no recipe among"),
        (["smoke/digits", "--seeds", "x"], "--seeds"),
        (["smoke/digits", "run.epoch=2"], "did you mean run.epochs"),
    ):
        assert told in cli("sweep", *arguments).refused()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("other", "jobs", "before", "after"),
    [
        (["smoke/digits"], 2, None, "8"),
        (["smoke/digits"], 20, None, "20"),
        (["smoke/digits"], 90, None, "32"),
        (["smoke/digits"], 20, "4", "4"),
        (["smoke/folder"], 2, None, "8"),
        (["smoke/folder", ["data.decode=gpu"]], 2, None, "32"),
        (["paper/imagenet"], 1, None, "32"),
        (["paper/imagenet"], 1, "4", "4"),
    ],
)
def test_there_are_queues_for_runs_and_the_decoder_where_the_user_says_nothing(other, jobs, before, after, monkeypatch):
    recipes = [load("smoke/digits"), load(*other)]
    monkeypatch.setattr(os, "environ", {} if before is None else {"CUDA_DEVICE_MAX_CONNECTIONS": before})
    widen_device_queue(recipes, jobs)
    assert os.environ == {"CUDA_DEVICE_MAX_CONNECTIONS": after}


def test_damaged_records_are_told_on_stderr_and_trained_again(tmp_path, capsys):
    (tmp_path / "damaged.json").write_text("{")
    assert len(_without_record(entries(tmp_path), tmp_path)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("warning: ")
    assert "damaged.json" in told.err
