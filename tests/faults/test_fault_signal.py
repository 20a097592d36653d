"""Ctrl-C, SIGTERM and SIGUSR1 to a process, a group or a rank, in training, evaluation and compilation: T16."""

from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1, Signals

import pytest
import runs
from counts import count
from processes import Job, command, ranks, torchrun
from watching import wait_for

from timestepper.engine.checkpoint import read
from timestepper.engine.rundir import read_status


def stopped_well(run: Path, job: Job, number: int) -> int:
    """The run says that it was interrupted, at which step, and that step is on the disk; the step."""
    assert job.wait(60) == 128 + number, job.stderr
    status = read_status(run)
    assert status["state"] == "interrupted"
    assert status["signal"] == number
    assert runs.newest(run)["step"] == status["step"]
    assert f"stopped by {Signals(number).name} at step {status['step']}" in job.stderr
    assert "Traceback" not in job.stderr
    assert runs.leftovers(run) == []
    return status["step"]


def wait_for_step(job: Job, run: Path, step: int) -> None:
    wait_for(lambda: runs.at_step(run, step) or job.poll() is not None, pause=0.002)
    assert job.poll() is None, job.stdout + job.stderr


@count("T16")
def test_t16_a_signal_saves_and_the_same_command_goes_on(
    times, tmp_path, folder_run, image_folder, chance, within, figure
):
    """A chain of signals, two in each run: one somewhere in training, one in the evaluation after an epoch."""
    recipe, slowest, in_evaluation, ended = runs.folder_recipe(image_folder), 0.0, 0, []
    for turn in range(times):
        run = tmp_path / f"run-{turn // 2}"
        number, group = (SIGINT, True) if turn % 4 in (0, 3) else (SIGTERM, False)
        with command(runs.train(run, recipe=recipe), tmp_path) as job:
            wait_for_step(job, run, 20 if turn % 2 else chance.randrange(1, 18))
            with within(5) as watch:
                job.send(number, group)
                step = stopped_well(run, job, number)
        in_evaluation += step == 20 and runs.newest(run)["epochs_done"] == 1
        slowest = max(slowest, watch.seconds)
        if turn % 2 or turn == times - 1:
            ended.append(run)
    for run in ended:
        with command(runs.train(run, recipe=recipe), tmp_path) as job:
            assert job.wait() == 0, job.stderr
        assert runs.differing(run, folder_run) == []
    figure(signals=times, saved=times, seconds=slowest, in_evaluation=in_evaluation)


def test_t16_a_second_ctrl_c_leaves_at_once(tmp_path, folder_run, image_folder, within, figure):
    run, recipe = tmp_path / "run", runs.folder_recipe(image_folder)
    with command(runs.train(run, recipe=recipe), tmp_path) as job:
        wait_for_step(job, run, 4)
        with within(1) as watch:
            job.send(SIGINT, group=True)
            wait_for(lambda: "once more to leave at once" in job.stderr, pause=0.001)
            if job.poll() is None:
                job.send(SIGINT, group=True)
            assert job.wait(30) == 130, job.stderr
        wait_for(lambda: not job.survivors(), 10)
    for path in runs.checkpoints(run):
        read(path)
    with command(runs.train(run, recipe=recipe), tmp_path) as job:
        assert job.wait() == 0, job.stderr
    assert runs.differing(run, folder_run) == []
    figure(seconds=watch.seconds)


def test_t16_sigusr1_saves_and_goes_on(tmp_path, folder_run, image_folder):
    run = tmp_path / "run"
    changes = ["run.checkpoint_steps=0", "run.checkpoint_epochs=0"]
    with command(runs.train(run, *changes, recipe=runs.folder_recipe(image_folder)), tmp_path) as job:
        wait_for_step(job, run, 2)
        job.send(SIGUSR1, group=True)
        wait_for(lambda: len(runs.checkpoints(run)) == 2, pause=0.002)
        assert 2 <= runs.newest(run)["step"] < runs.FOLDER_STEPS
        assert job.wait() == 0, job.stderr
    assert runs.differing(run, folder_run) == []


@pytest.mark.parametrize(("rank", "number"), [(1, SIGTERM), (0, SIGINT)])
def test_t16_a_signal_to_one_rank_stops_both_at_one_step(rank, number, tmp_path, unused_port, within, figure):
    run = tmp_path / "run"
    with ranks(runs.train(run, "run.epochs=100"), tmp_path, unused_port) as jobs:
        wait_for_step(jobs[0], run, 3)
        with within(5) as watch:
            jobs[rank].send(number)
            stopped_well(run, jobs[0], number)
            assert jobs[1].wait() == 128 + number, jobs[1].stderr
    figure(seconds=watch.seconds)


@pytest.mark.parametrize("number", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.soak)])
def test_t16_a_signal_to_torchrun(number, tmp_path, within, figure):
    run = tmp_path / "run"
    with torchrun(runs.train(run, "run.epochs=100"), tmp_path) as job:
        wait_for_step(job, run, 3)
        job.offspring()
        with within(5) as watch:
            job.send(number, group=True)
            assert job.wait(60) == 1
        assert job.survivors() == []
    status = read_status(run)
    assert status["state"] == "interrupted", (status, job.stderr)
    assert runs.newest(run)["step"] == status["step"] >= 3
    figure(seconds=watch.seconds)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_t16_a_signal_while_compiling(number, tmp_path, within, figure):
    run = tmp_path / "run"
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with command(runs.train(run, "runtime.compile=true"), tmp_path, env) as job:
        wait_for(lambda: any((tmp_path / "cache").rglob("*.cpp")) or job.poll() is not None, 300)
        assert not runs.logged_steps(run), "compiled before the signal was sent"
        with within(30) as watch:
            job.send(number, group=True)
            stopped_well(run, job, number)
    with command(runs.train(run), tmp_path) as job:
        assert job.wait() == 0, job.stderr
    figure(seconds=watch.seconds, step=runs.newest(run)["step"])
