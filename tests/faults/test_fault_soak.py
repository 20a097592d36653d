"""Random faults, one after the other, for as long as there is time: T30.

On a GPU machine, in one call (ten minutes by default):
``TIMESTEPPER_SOAK_SECONDS=600 pytest tests/faults/test_fault_soak.py -m gpu``
"""

import functools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
import torch
from counts import count
from outcomes import message_of
from processes import Job, command, fresh_command, limit_file_size, under_fire
from watching import children, wait_for

Fault = Callable[[list[str], Path, Path, random.Random], None]


def killed(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    with command(arguments, folder) as job:
        time.sleep(chance.uniform(0, 1.5))
        assert job.kill() in (-signal.SIGKILL, 0), job.stderr


def asked_to_stop(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    number = chance.choice([signal.SIGINT, signal.SIGTERM])
    with command(arguments, folder) as job:
        wait_for(lambda: runs.state_of(run) == "running" or job.poll() is not None)
        time.sleep(chance.uniform(0, 1.0))
        if job.poll() is None:
            job.send(number, group=chance.random() < 0.5)
        assert job.wait() in (0, 128 + number), job.stderr
        assert "Traceback" not in job.stderr


def asked_to_save(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    with command(arguments, folder) as job:
        wait_for(lambda: runs.state_of(run) == "running" or job.poll() is not None)
        if job.poll() is None:
            job.send(signal.SIGUSR1)
        time.sleep(chance.uniform(0, 0.5))
        assert job.kill() in (-signal.SIGKILL, 0), job.stderr


def checkpoint_damaged(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    """Only where another sound one is left."""
    killed(arguments, run, folder, chance)
    paths = runs.checkpoints(run)
    if len(paths) == 2 and runs.state_of(run) != "finished":
        content = paths[1].read_bytes()
        place = chance.randrange(len(content))
        paths[1].write_bytes(chance.choice([content[:place], runs.zero_page(content, place // 4096)]))
    with command(arguments, folder) as job:  # long enough to go back and save anew
        before = len(runs.log(run))
        wait_for(lambda: len(runs.log(run)) > before + 8 or runs.state_of(run) == "finished" or job.poll() is not None)
        assert job.kill() in (-signal.SIGKILL, 0), job.stderr


def worker_killed(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    with command(arguments, folder) as job:
        time.sleep(chance.uniform(0.3, 1.5))
        for pid in children(job.pid)[:1]:
            os.kill(pid, signal.SIGKILL)
        assert job.wait() in (0, 1), job.stderr
        assert "Traceback" not in job.stderr


def disk_full(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    with command(arguments, folder, prepare=functools.partial(limit_file_size, 100_000)) as job:
        assert job.wait() in (0, 1), job.stderr
        assert job.poll() == 0 or "No space left" in message_of(job.stderr)


def started_twice(arguments: list[str], run: Path, folder: Path, chance: random.Random) -> None:
    with command(arguments, folder) as first:
        wait_for(lambda: runs.state_of(run) == "running" or first.poll() is not None)
        with command(arguments, folder) as second:
            assert second.wait(60) in (0, 2), second.stderr
        assert first.kill() in (-signal.SIGKILL, 0), first.stderr


FAULTS: list[Fault] = [
    killed,
    asked_to_stop,
    asked_to_save,
    checkpoint_damaged,
    worker_killed,
    disk_full,
    started_twice,
]


@count("T30")
def test_t30_random_faults_change_nothing(times, tmp_path, folder_run, image_folder, chance, figure):
    recipe, end = runs.folder_recipe(image_folder), time.monotonic() + times
    faults, ended = Counter(), 0
    while time.monotonic() < end:
        run = tmp_path / f"run-{ended}"
        arguments = runs.train(run, recipe=recipe)
        for _ in range(chance.randrange(1, 6)):
            fault = chance.choice(FAULTS)
            fault(arguments, run, tmp_path, chance)
            faults[fault.__name__] += 1
        with command(arguments, tmp_path) as job:
            assert job.wait(120) == 0, job.stderr
        assert runs.differing(run, folder_run) == [], faults
        assert runs.logged_steps(run) == list(range(1, runs.FOLDER_STEPS + 1))
        ended += 1
    figure(runs=ended, seconds=times, **faults)


@pytest.mark.gpu
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_t30_killed_on_a_gpu_ends_equal(tmp_path, chance, figure):
    """kill -9 and resume with NCCL (a world of one process) and compilation; deterministic kernels, so equal ends."""
    seconds = int(os.environ.get("TIMESTEPPER_SOAK_SECONDS", 600))
    recipe = ["smoke/digits-lstm", "run.epochs=40", "run.checkpoint_steps=25", "run.tensorboard=false"]
    recipe += ["runtime.device=cuda", "runtime.deterministic=true", "runtime.compile=true", "runtime.precision=bf16"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]

    def start(run: Path):
        return fresh_command(runs.train(run, recipe=recipe), tmp_path, launcher=launcher)

    def moment(job: Job, run: Path) -> None:
        goal = (runs.logged_steps(run) or [0])[-1] + chance.randrange(1, 400)
        wait_for(lambda: runs.at_step(run, goal) or job.poll() is not None)

    with start(tmp_path / "reference") as job:
        assert job.wait(600) == 0, job.stdout + job.stderr
    kills, ended, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        folder = tmp_path / f"round-{ended}"
        folder.mkdir()
        for run in under_fire(start, folder, 3, moment, Job.kill_all):
            assert runs.differing(run, tmp_path / "reference") == []
            ended += 1
        kills += 3
        figure(kills=kills, runs=ended)
    assert kills
