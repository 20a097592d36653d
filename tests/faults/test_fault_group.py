"""Two processes under torchrun, killed, stopped and ended: T2, T17, T18, T19, T20."""

import os
import signal
import time
from pathlib import Path

import pytest
import runs
from counts import count
from processes import Job, torchrun, under_fire
from watching import Watch, alive, kill, wait_for

RECIPE = [*runs.DIGITS, "run.epochs=3", "run.checkpoint_steps=2"]
STEPS = 33


def rank_pids(job: Job) -> dict[int, int]:
    """The worker processes by rank, as their environment says."""
    found = {}
    for pid in job.offspring():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if b"TORCHELASTIC_RUN_ID" in values:
            found[int(values[b"RANK"])] = pid
    return found


def ready(job: Job, run: Path, step: int) -> dict[int, int]:
    """Wait until both ranks train; their process ids."""
    wait_for(lambda: runs.at_step(run, step) or job.poll() is not None)
    assert job.poll() is None, job.stdout + job.stderr
    found = rank_pids(job)
    assert sorted(found) == [0, 1]
    return found


@pytest.fixture(scope="session")
def pair_run(tmp_path_factory) -> Path:
    """An uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("pair")
    with torchrun(runs.train(folder / "run", recipe=RECIPE), folder) as job:
        assert job.wait() == 0, job.stdout + job.stderr
        assert job.survivors() == []
    return folder / "run"


@count("T20")
def test_t20_two_ranks_end_well(times, tmp_path, pair_run, figure):
    for number in range(times - 1):  # the first time was the reference
        run = tmp_path / f"run-{number}"
        with torchrun(runs.train(run, recipe=RECIPE), tmp_path) as job:
            assert job.wait() == 0, job.stdout + job.stderr
        assert runs.differing(run, pair_run) == []
    assert runs.state_of(pair_run) == "finished"
    assert runs.logged_steps(pair_run) == list(range(1, STEPS + 1))
    figure(ends=times, exit_0=times)


@count("T2")
def test_t2_the_whole_group_killed_ends_byte_equal(times, tmp_path, pair_run, chance, figure):
    def some_steps_on(job: Job, run: Path) -> None:
        goal = (runs.logged_steps(run) or [0])[-1] + chance.randrange(1, 16)
        wait_for(lambda: runs.at_step(run, goal) or job.poll() is not None)
        time.sleep(chance.uniform(0, 0.1))

    with Watch() as watch:
        ended = under_fire(
            lambda run: torchrun(runs.train(run, recipe=RECIPE), tmp_path), tmp_path, times, some_steps_on, Job.kill_all
        )
    for run in ended:
        assert runs.differing(run, pair_run) == []
        assert runs.checkpoints(run)[-1].read_bytes() == runs.checkpoints(pair_run)[-1].read_bytes()
    figure(kills=times, runs=len(ended), seconds=watch.seconds)


@count("T17")
def test_t17_one_rank_killed_ends_the_job(times, tmp_path, figure):
    slowest = 0.0
    for number in range(times):
        run, rank = tmp_path / f"run-{number}", (number + 1) % 2
        with torchrun(runs.train(run, "run.epochs=100", recipe=RECIPE), tmp_path) as job:
            pids = ready(job, run, 3)
            with Watch() as watch:
                os.kill(pids[rank], signal.SIGKILL)
                assert job.wait() != 0
                wait_for(lambda: not job.survivors())
        assert runs.newest(run)["step"] >= 2
        slowest = max(slowest, watch.seconds)
    figure(kills=times, orphans=0, seconds=slowest)


@count("T18")
def test_t18_one_rank_killed_and_restarted_ends_byte_equal(times, tmp_path, pair_run, chance, figure):
    slowest, kills = 0.0, 0
    for number in range(times + 5):  # on a busy machine a kill may come too late
        run, rank = tmp_path / f"run-{number}", kills % 2
        with torchrun(runs.train(run, recipe=RECIPE), tmp_path, "--max-restarts", "3") as job:
            step = chance.randrange(2, 20)
            wait_for(lambda: runs.at_step(run, step) or job.poll() is not None)  # noqa: B023
            with Watch() as watch:
                for pid in [pid for other, pid in rank_pids(job).items() if other == rank]:
                    kill(pid)
                wait_for(lambda: "going on at step" in job.stdout or job.poll() is not None)
            assert job.wait() == 0, job.stdout + job.stderr
            restarts = job.stdout.count("going on at step")
        assert restarts <= 1
        assert runs.differing(run, pair_run) == []
        slowest, kills = max(slowest, watch.seconds), kills + restarts
        if kills == times:
            break
    assert kills == times
    figure(kills=times, equal=times, seconds=slowest)


@count("T19")
def test_t19_a_rank_that_hangs_is_given_up(times, tmp_path, figure):
    """The other rank leaves after ``times`` seconds; torchrun gives a process 30 s to answer SIGTERM, then kills it."""
    run = tmp_path / "run"
    arguments = runs.train(run, "run.epochs=100", "--dist-timeout", str(times), recipe=RECIPE)
    with torchrun(arguments, tmp_path) as job:
        pids = ready(job, run, 3)
        with Watch() as watch:
            os.kill(pids[1], signal.SIGSTOP)
            assert job.wait() != 0
        assert not alive(pids[1])
        assert job.survivors() == []
        assert "rank 0 lost another process" in job.stderr
    assert runs.newest(run)["step"] >= 2
    figure(dist_timeout=times, seconds=watch.seconds)
