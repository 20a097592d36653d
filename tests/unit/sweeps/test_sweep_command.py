import json
import os
import signal
import subprocess
import sys

import pytest
from processes import command_in, run
from tiny_sweep import SMALL, entries, remains, run_sweep
from watching import is_stopped, wait_for, waits_for

from timestepper.cli.sweep import _without_record, make_results
from timestepper.recipe.load import load
from timestepper.runs.run import Run
from timestepper.runs.start import widen_device_queue
from timestepper.sweeps.reproduce import MISSING, bring_to_end

SWEEP = ["sweep", "smoke/digits", *SMALL, "run.epochs=8", "--seeds", "0,1", "--checkpoint-seconds", "0", "--out", "."]


def statuses(out):
    return [json.loads(path.read_text()) for path in sorted(out.rglob("status.json"))]


def told_in_mid_run(out, sweep, processes: int) -> None:
    """SIGTERM, once every run is some steps on.

    Processes of their own are stopped there until it has reached them: else one could end before the other begins.
    """
    stopped: set[int] = set()

    def all_there() -> bool:
        there = [status["pid"] for status in statuses(out) if status["state"] == "running" and status["step"] >= 5]
        for pid in set(there) if processes > 1 else ():
            os.kill(pid, signal.SIGSTOP)
            stopped.add(pid)
        return len(there) == 2

    wait_for(all_there)
    wait_for(lambda: all(is_stopped(pid) for pid in stopped))  # one that is not yet would take SIGTERM first
    sweep.send(signal.SIGTERM)
    wait_for(lambda: all(waits_for(pid, signal.SIGTERM) for pid in stopped))
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    wanted = entries(tmp_path_factory.mktemp("whole"), "run.epochs=8", recipes=("smoke/digits",), seeds=(0, 1))
    run_sweep(wanted)
    return [remains(entry.path) for entry in wanted]


@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one process", "two processes"])
def test_sigterm_saves_all_and_the_same_command_goes_on(tmp_path, more, uninterrupted):
    """With two processes only the first one is told, and passes it on."""
    with command_in(tmp_path, *SWEEP, *more) as first:
        told_in_mid_run(tmp_path, first, processes=2 if more else 1)
        assert first.wait() == 128 + signal.SIGTERM, first.stderr
        assert first.stdout.count("the same command goes on from there") >= 2
    for status in statuses(tmp_path):
        assert status["state"] == "interrupted"
        assert status["checkpoint"] == f"step-{status['step']:08d}.pt"
    second = run(tmp_path, *SWEEP, *more)
    assert second.returncode == 0, second.stderr
    assert second.stdout.count("going on at step") == 2
    whole = tmp_path / "smoke/digits/data.batch_size=256,run.epochs=8"
    assert [remains(whole / f"seed{seed}") for seed in (0, 1)] == uninterrupted


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


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_decision_about_queues_covers_all_runs_of_a_set(jobs, tmp_path, monkeypatch):
    """CUDA reads it once: the first run must not decide for one that decodes on the GPU. Neither has data here."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    recipes = [load(name, [f"data.root={tmp_path / 'nowhere'}"]) for name in ("paper/cifar10", "paper/imagenet")]
    runs = [Run(recipe, "x", tmp_path / str(number), state=MISSING) for number, recipe in enumerate(recipes)]
    assert bring_to_end(runs, tmp_path / "results", jobs=jobs) == 1
    assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_damaged_records_are_told_on_stderr_and_trained_again(tmp_path, capsys):
    (tmp_path / "damaged.json").write_text("{")
    assert len(_without_record(entries(tmp_path), tmp_path)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("warning: ")
    assert "damaged.json" in told.err


@pytest.mark.parametrize(("copied", "known", "warnings"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_a_copy_of_the_source_without_git_is_told_how_records_get_their_commit(
    copied, known, warnings, tmp_path, monkeypatch, capsys
):
    """An installation has a version instead."""
    monkeypatch.setattr("timestepper.records.commit", lambda: "abc" if known else "unknown")
    monkeypatch.setattr("timestepper.recipe.load.FOLDERS", (tmp_path if copied else tmp_path / "none",))
    make_results(tmp_path / "results")
    assert capsys.readouterr().err.count("set TIMESTEPPER_COMMIT to it") == warnings


def test_the_process_that_only_starts_others_waits_for_no_compiler():
    """It takes more than a second to load, and each of the others has to do that too."""
    program = "import sys, timestepper.sweeps.several_gpus; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
