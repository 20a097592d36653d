"""Ctrl-C, SIGTERM and SIGUSR1 to a process, a group or a rank, in training, evaluation and compilation: T16."""

import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGINT, SIGTERM, SIGUSR1, Signals
from typing import NoReturn

import pytest
import runs
from counts import count
from processes import Job, command, ranks, torchrun
from watching import Watch, wait_for

from timestepper.engine.checkpoint import read
from timestepper.engine.rundir import read_status
from timestepper.runs import build


def stopped_well(run: Path, job: Job, number: int) -> int:
    """The run says that it was interrupted, at which step, and that step is on the disk; the step."""
    assert job.wait() == 128 + number, job.stderr
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


def tries(folder: Path) -> Iterator[Path]:
    """Folders for runs of a second: on a busy machine a few may be over before the signal is sent."""
    for number in range(5):
        yield folder / f"try-{number}"
    pytest.fail("no signal came before the end of the run")


def over(run: Path, job: Job) -> bool:
    """Whether the run had come to its end before the signal."""
    job.wait()
    return runs.state_of(run) == "finished"


@count("T16")
def test_t16_a_signal_saves_and_the_same_command_goes_on(times, tmp_path, folder_run, image_folder, chance, figure):
    """Two signals in each run: one somewhere in training, one in the evaluation after an epoch."""
    recipe, slowest, in_evaluation = runs.folder_recipe(image_folder), 0.0, 0
    for turn in range(0, times, 2):
        for run in tries(tmp_path / f"turn-{turn}"):
            steps = []
            for step, number, group in ((chance.randrange(1, 18), SIGINT, turn % 4 == 0), (20, SIGTERM, turn % 4 == 2)):
                with command(runs.train(run, recipe=recipe), tmp_path) as job:
                    wait_for_step(job, run, step)
                    with Watch() as watch:
                        job.send(number, group)
                        if over(run, job):
                            break
                    steps.append(stopped_well(run, job, number))
                slowest = max(slowest, watch.seconds)
            if len(steps) == 2:
                break
        in_evaluation += steps[1] == 20 and runs.newest(run)["epochs_done"] == 1
        with command(runs.train(run, recipe=recipe), tmp_path) as job:
            assert job.wait() == 0, job.stderr
        assert runs.differing(run, folder_run) == []
    figure(signals=times, saved=times, seconds=slowest, in_evaluation=in_evaluation)


def test_t16_a_second_ctrl_c_leaves_at_once(tmp_path, folder_run, image_folder, figure):
    recipe = runs.folder_recipe(image_folder)
    for run in tries(tmp_path):
        with command(runs.train(run, recipe=recipe), tmp_path) as job:
            wait_for_step(job, run, 4)
            with Watch() as watch:
                job.send(SIGINT, group=True)
                wait_for(lambda: "once more to leave at once" in job.stderr or job.poll() is not None, pause=0)
                job.send(SIGINT, group=True)
                if over(run, job):
                    continue
            assert job.wait() == 130, job.stderr
            wait_for(lambda: not job.survivors())
        break
    for path in runs.checkpoints(run):
        read(path)
    with command(runs.train(run, recipe=recipe), tmp_path) as job:
        assert job.wait() == 0, job.stderr
    assert runs.differing(run, folder_run) == []
    figure(seconds=watch.seconds)


def test_t16_sigusr1_saves_and_goes_on(tmp_path, folder_run, image_folder):
    changes = ["run.checkpoint_steps=0", "run.checkpoint_epochs=0"]
    for run in tries(tmp_path):
        with command(runs.train(run, *changes, recipe=runs.folder_recipe(image_folder)), tmp_path) as job:
            wait_for_step(job, run, 2)
            job.send(SIGUSR1, group=True)
            wait_for(lambda: len(runs.checkpoints(run)) == 2 or job.poll() is not None, pause=0.002)  # noqa: B023
            saved = runs.newest(run)["step"]
            assert job.wait() == 0, job.stderr
        assert runs.differing(run, folder_run) == []
        if 2 <= saved < runs.FOLDER_STEPS:
            break


def build_for_ever() -> None:
    """A network that is never ready."""

    def network(*_: object) -> NoReturn:
        print("building", flush=True)
        while True:
            time.sleep(0.01)

    build.network = network


@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_t16_a_signal_while_the_network_is_built_leaves_at_once(number, tmp_path):
    run = tmp_path / "new" / "run"
    with command(runs.train(run), tmp_path, prepare=build_for_ever) as job:
        wait_for(lambda: "building" in job.stdout or job.poll() is not None)
        job.send(number)
        assert job.wait() == 128 + number, job.stderr
        assert job.stderr == "\nstopped before it began; nothing has changed, and the same command goes on\n"
    assert not run.parent.exists()


def test_t16_a_signal_before_a_run_goes_on_changes_nothing(tmp_path):
    run = tmp_path / "run"
    with command(runs.train(run, "run.epochs=100"), tmp_path) as job:
        wait_for_step(job, run, 3)
        job.send(SIGTERM)
        stopped_well(run, job, SIGTERM)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}
    with command(runs.train(run, "run.epochs=100"), tmp_path, prepare=build_for_ever) as job:
        wait_for(lambda: "building" in job.stdout or job.poll() is not None)
        job.send(SIGINT)
        assert job.wait() == 130, job.stderr
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("rank", "number"), [(1, SIGTERM), (0, SIGINT)])
def test_t16_a_signal_to_one_rank_stops_both_at_one_step(rank, number, tmp_path, unused_port, figure):
    run = tmp_path / "run"
    with ranks(runs.train(run, "run.epochs=100"), tmp_path, unused_port) as jobs:
        wait_for_step(jobs[0], run, 3)
        with Watch() as watch:
            jobs[rank].send(number)
            stopped_well(run, jobs[0], number)
            assert jobs[1].wait() == 128 + number, jobs[1].stderr
    figure(seconds=watch.seconds)


@pytest.mark.parametrize("number", [SIGINT, pytest.param(SIGTERM, marks=pytest.mark.soak)])
def test_t16_a_signal_to_torchrun(number, tmp_path, figure):
    run = tmp_path / "run"
    with torchrun(runs.train(run, "run.epochs=100"), tmp_path) as job:
        wait_for_step(job, run, 3)
        job.offspring()
        with Watch() as watch:
            job.send(number, group=True)
            assert job.wait() == 1
        assert job.survivors() == []
    status = read_status(run)
    assert status["state"] == "interrupted", (status, job.stderr)
    assert runs.newest(run)["step"] == status["step"] >= 3
    figure(seconds=watch.seconds)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_t16_a_signal_while_compiling(number, tmp_path, figure):
    run = tmp_path / "run"
    env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with command(runs.train(run, "runtime.compile=true"), tmp_path, env) as job:
        wait_for(lambda: any((tmp_path / "cache").rglob("*.cpp")) or job.poll() is not None)
        assert not runs.logged_steps(run), "compiled before the signal was sent"
        with Watch() as watch:
            job.send(number, group=True)
            stopped_well(run, job, number)
    with command(runs.train(run), tmp_path) as job:
        assert job.wait() == 0, job.stderr
    figure(seconds=watch.seconds, step=runs.newest(run)["step"])
