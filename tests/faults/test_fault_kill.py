"""Killed without warning, at any moment: T1, T3, T13 (another file system) and T29."""

import os
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
from counts import count
from processes import command, under_fire
from watching import Watch, wait_for

from timestepper.engine.checkpoint import read
from timestepper.engine.rundir import RECIPE, STATUS, TIMING

DEEP = ["smoke/digits", "model.name=cifar/resnet56", "data.batch_size=16", "run.checkpoint_steps=1"]


@count("T1")
def test_t1_t29_killed_at_random_times_ends_byte_equal(times, tmp_path, folder_run, image_folder, chance, figure):
    recipe = runs.folder_recipe(image_folder)
    with Watch() as watch:
        ended = under_fire(
            lambda run: command(runs.train(run, recipe=recipe), tmp_path),
            tmp_path,
            times,
            moment=lambda job, run: time.sleep(chance.uniform(0, 1.5)),
        )
    steps = list(range(1, runs.FOLDER_STEPS + 1))
    for run in ended:
        assert runs.differing(run, folder_run) == []
        assert runs.checkpoints(run)[-1].read_bytes() == runs.checkpoints(folder_run)[-1].read_bytes()
        assert runs.logged_steps(run) == steps
        assert tensorboard_steps(run, "train/loss") == Counter(steps)
        assert runs.leftovers(run) == []
    figure(kills=times, runs=len(ended), seconds=watch.seconds)


def tensorboard_steps(run: Path, tag: str) -> Counter:
    """How often each step stands in the event files, read without the repairs that TensorBoard makes."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = [event for path in (run / "tensorboard").iterdir() for event in EventFileLoader(str(path)).Load()]
    return Counter(event.step for event in events for value in event.summary.value if value.tag == tag)


@count("T3")
def test_t3_killed_inside_a_save_leaves_a_sound_checkpoint(times, tmp_path, chance, figure):
    figure(**kill_inside_saves(tmp_path / "run", tmp_path, times, chance))


@count("T13")
def test_t13_killed_inside_a_save_on_another_file_system(times, tmp_path, shared_memory, chance, figure):
    if os.stat(shared_memory).st_dev == os.stat(tempfile.gettempdir()).st_dev:
        pytest.skip("/dev/shm is on the file system of $TMPDIR")
    figure(**kill_inside_saves(shared_memory / "run", tmp_path, times, chance))


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A folder on another file system than the temporary one."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


def half_written(run: Path) -> list[Path]:
    return list(run.glob("checkpoints/*.tmp"))


def kill_inside_saves(run: Path, folder: Path, times: int, chance: random.Random) -> dict[str, int]:
    """Kill as soon as a new temporary file is seen, or a few milliseconds later; look at the folder each time."""
    inside = 0
    for number in range(times):
        before = len(runs.checkpoints(run))
        with command(runs.train(run, recipe=DEEP), folder) as job:
            for _ in range(chance.randrange(1, 4)):  # the first look sees that the old one is removed
                wait_for(lambda: not half_written(run) or job.poll() is not None, pause=0)
                wait_for(lambda: half_written(run) or job.poll() is not None, pause=0)
            time.sleep(chance.choice([0, 0.005]) * chance.random())
            assert job.poll() is None, job.stderr
            job.kill()
        left = runs.leftovers(run)
        inside += bool(left)
        assert len(left) <= 1, left
        assert before == 0 or runs.checkpoints(run), f"kill {number}: no checkpoint left"
        for path in runs.checkpoints(run):
            read(path)
    with command(runs.train(run, recipe=DEEP), folder) as job:  # still usable
        started = len(runs.log(run))
        while len(runs.log(run)) < started + 2 and job.poll() is None:
            time.sleep(0.02)
        assert job.poll() is None, job.stderr
        assert "going on at step" in job.stdout or not started
        job.send(15)
        assert job.wait() == 143
    assert runs.leftovers(run) == []
    assert inside or times < 10, "no kill hit a save"
    return {"kills": times, "with a half-written file": inside}


@pytest.mark.parametrize("name", [STATUS, RECIPE, TIMING])
def test_t3_killed_while_the_first_files_are_written(name, tmp_path, cli):
    run = tmp_path / "run"
    run.mkdir()
    (run / f"{name}.0123456789abcdef.tmp").write_text("half")
    assert cli(*runs.train(run, "run.epochs=1")).code == 0
    assert runs.leftovers(run) == []
