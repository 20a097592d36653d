"""Several runs at a time: interrupted, brought to their end, measured, and each alone with its trouble."""

import json
import signal

import pytest
from tiny_reproduce import run, stop_when

SET = """
set = "mini"
title = "Digits"
seeds = [0, 1, 2]
measure = ["noise"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=8", "data.batch_size=256", "run.tensorboard=false"]
hours = 0.01
"""
TOGETHER = ("reproduce", "mini.toml", "--jobs", "2")


def statuses(folder):
    return [json.loads(path.read_text()) for path in sorted((folder / "runs").glob("*/status.json"))]


@pytest.fixture(scope="module")
def stopped(folder):
    """Stopped in the middle of two runs, before the third began."""

    def under_way():
        found = statuses(folder)
        return len(found) == 2 and min(status["step"] for status in found) >= 5

    return *stop_when(under_way, signal.SIGTERM, folder, *TOGETHER), statuses(folder)


@pytest.fixture(scope="module")
def finished(folder, stopped):
    return run(folder, *TOGETHER)


def test_a_signal_stops_all_runs_and_saves_them(folder, stopped):
    process, output, errors, found = stopped
    assert process.returncode == 128 + signal.SIGTERM
    assert "training 3 runs, 2 at a time" in output
    assert "stopped by SIGTERM; all runs are saved, and the same command goes on from there" in errors
    assert len(found) == 2
    for status in found:
        assert status["state"] == "interrupted"
        assert status["checkpoint"] == f"step-{status['step']:08d}.pt"
    assert list((folder / "results").iterdir()) == []


def test_the_same_command_goes_on_and_measures(folder, finished):
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("going on at step") == 2
    assert finished.stdout.count(": measured\n") == 3  # beside the others
    assert finished.stdout.count(": finished, to be recorded") == 3
    records = [json.loads(path.read_text()) for path in (folder / "results").glob("*.json")]
    assert sorted(record["seed"] for record in records) == [0, 1, 2]
    for record in records:
        assert record["noise"]["error"][0] == pytest.approx([record["final"]["test"]["error"]] * 5)
        assert record["recipe"]["run"]["checkpoint_seconds"] == 120.0


def test_one_at_a_time_finds_it_done_and_learns_the_same(folder, finished, tmp_path):
    assert "3 of 3 runs done" in run(folder, "reproduce", "mini.toml", "--list").stdout
    (tmp_path / "one.toml").write_text(SET.replace("[0, 1, 2]", "[1]"))
    assert run(tmp_path, "reproduce", "one.toml").returncode == 0
    (alone,) = (tmp_path / "runs").iterdir()
    assert (alone / "weights.safetensors").read_bytes() == (
        folder / "runs" / alone.name / "weights.safetensors"
    ).read_bytes()


MIXED = """
[[train]]
base = "smoke/digits"
overrides = ["run.epochs=1", "optimiser.lr=1e9", "run.tensorboard=false"]
hours = 0.01

[[train]]
base = "paper/cifar10"
hours = 0.1
"""


def test_a_run_that_fails_leaves_the_others_alone(tmp_path):
    """Three runs diverge and three have no data, which is told once; the rhythm of checkpoints is the user's own."""
    (tmp_path / "mini.toml").write_text(SET.replace("epochs=8", "epochs=1") + MIXED)
    (tmp_path / "nowhere").mkdir()
    result = run(tmp_path, *TOGETHER, "--data-root", "nowhere", "run.checkpoint_epochs=1")
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert sum("learning rate 1e+09" in line for line in errors) == 3
    assert sum("nowhere" in line for line in errors) == 1
    assert len(errors) == 4
    assert "Traceback" not in result.stderr
    records = [json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")]
    assert [record["recipe"]["run"]["checkpoint_epochs"] for record in records] == [1, 1, 1]


def test_torchrun_is_refused_in_one_line(folder):
    result = run(folder, *TOGETHER, RANK="0", WORLD_SIZE="1")
    assert result.returncode == 2
    assert result.stderr.startswith(
        "error: --jobs and --cluster spread the runs by themselves; start it without torchrun"
    )
    assert len(result.stderr.splitlines()) == 1
