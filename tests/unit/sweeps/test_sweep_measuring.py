"""Runs of a sweep are measured when they have ended, beside the others, whatever ends the process that does it."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from outcomes import message_of
from processes import Job, command_in, run
from watching import alive, descendants, is_stopped, wait_for, waits_for

SET = """
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise", "stability"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=1", "data.batch_size=256", "run.tensorboard=false", MORE]
hours = 0.01
"""
SWEEP = ("sweep", "mini.toml", "--jobs", "1", "--results", "results")
MEASURED = ["noise", "stability"]
TINY_VIT = "img_size=8 patch_size=4 embed_dim=12 depth=1 num_heads=1"


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "mini.toml").write_text(SET.replace(", MORE", ""))
    return tmp_path


def measured(folder: Path) -> dict[int, list[str]]:
    """By seed, what its record in the results has been measured for; each run has one."""
    found = [json.loads(path.read_text()) for path in (folder / "results").glob("*.json")]
    assert len({record["seed"] for record in found}) == len(found)
    return {record["seed"]: [name for name in MEASURED if name in record] for record in found}


def states(folder: Path) -> list[str]:
    """In the order of the seeds."""
    return [json.loads(path.read_text())["state"] for path in sorted((folder / "runs").glob("*/status.json"))]


def weights(folder: Path) -> list[tuple[bytes, int]]:
    """With their times: a run that is not touched again has the old ones."""
    paths = sorted((folder / "runs").glob("*/weights.safetensors"))
    return [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]


HOLD = """
import os, signal, sys
if "timestepper.sweeps.measuring" in sys.orig_argv:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def held(folder: Path) -> Iterator[tuple[Job, int]]:
    """A sweep that measures, and the process that does it, stopped before its first line; both runs are trained."""
    (hold := folder / "hold").mkdir()
    (hold / "sitecustomize.py").write_text(HOLD)
    path = os.pathsep.join([str(hold), *filter(None, [os.environ.get("PYTHONPATH")])])
    with command_in(folder, *SWEEP, "--measure", PYTHONPATH=path) as sweep:
        (process,) = wait_for(lambda: [pid for pid in descendants(sweep.pid) if is_stopped(pid)])
        (hold / "sitecustomize.py").unlink()
        wait_for(lambda: states(folder) == ["finished", "finished"])
        yield sweep, process


def test_each_is_measured_as_reproduce_does_it(folder):
    assert run(folder, *SWEEP).returncode == 0
    assert measured(folder) == {0: [], 1: []}
    trained = weights(folder)
    result = run(folder, *SWEEP, "--measure")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("measured") == 2
    assert measured(folder) == {0: MEASURED, 1: MEASURED}
    assert weights(folder) == trained
    assert "2 of 2 runs have a record in results and are skipped" in run(folder, *SWEEP, "--measure").stdout
    other = run(folder, "reproduce", "mini.toml", "--runs", "others", "--results", "elsewhere")
    assert other.returncode == 0, other.stderr
    ours, theirs = (
        [json.loads(path.read_text())["noise"] for path in sorted((folder / where).glob("*.json"))]
        for where in ("results", "elsewhere")
    )
    assert ours == theirs


def test_the_others_train_on_and_a_process_that_is_killed_costs_its_run_a_second_try(folder):
    with held(folder) as (sweep, process):
        assert measured(folder) == {0: [], 1: []}  # the records did not wait for that either
        os.kill(process, signal.SIGKILL)
        assert sweep.wait() == 1
        assert "seed0: trained and recorded, but not measured: its process has ended (-9)" in sweep.stdout
    assert measured(folder) == {0: [], 1: MEASURED}
    trained = weights(folder)
    assert run(folder, *SWEEP, "--measure").returncode == 0
    assert measured(folder) == {0: MEASURED, 1: MEASURED}
    assert weights(folder) == trained


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_is_stopped_leaves_no_process_and_goes_on_with_measuring(number, folder):
    with held(folder) as (sweep, process):
        sweep.send(number)
        wait_for(lambda: waits_for(process, signal.SIGTERM) if number == signal.SIGTERM else sweep.poll() is not None)
        os.kill(process, signal.SIGCONT)
        code = sweep.wait()
        wait_for(lambda: not alive(process))
        if number == signal.SIGTERM:
            assert code == 128 + number
            assert (
                "seed0  interrupted       trained and recorded; the same command goes on with measuring" in sweep.stdout
            )
    assert measured(folder) == {0: [], 1: []}
    assert run(folder, *SWEEP, "--measure").returncode == 0
    assert measured(folder) == {0: MEASURED, 1: MEASURED}


def test_what_cannot_be_measured_is_said_of_its_run_and_the_rest_is_kept(tmp_path):
    """There is no bound for the chain of a transformer."""
    more = f'"model.name=timm/vit_tiny_patch16_224", "model.options={TINY_VIT}"'
    (tmp_path / "mini.toml").write_text(SET.replace("MORE", more).replace("[0, 1]", "[0]"))
    result = run(tmp_path, *SWEEP, "--measure")
    assert result.returncode == 1
    assert result.stdout.count("VisionTransformer has no block that the theory covers") == 2  # then, and at the end
    assert measured(tmp_path) == {0: ["noise"]}


def test_it_needs_results_and_a_set_that_says_what(folder):
    for arguments, words in {
        ("mini.toml", "--measure"): "name it with --results",
        (*SWEEP[1:], "--measure", "--cluster", "local"): "reproduce --cluster measures in them",
        ("smoke/digits", "--results", "results", "--measure"): "no set of these says what to measure",
    }.items():
        result = run(folder, "sweep", *arguments)
        assert result.returncode == 2
        assert words in message_of(result.stderr)
    assert sorted(path.name for path in folder.iterdir()) == ["mini.toml"]
