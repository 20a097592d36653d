"""What is shown has no say in what is computed: stdout and stderr that are closed, full or read by nobody (T34)."""

import functools
import os
import signal
from pathlib import Path

import pytest
import runs
from counts import count
from processes import command
from stopping import drive
from watching import wait_for

RECIPE = [*runs.SHORT, "run.epochs=1"]
SET = f"""
set = "mini"
title = "Digits"
seeds = [0]
[[train]]
base = "smoke/digits"
overrides = {RECIPE[1:]}
hours = 0.01
"""


def closed() -> None:
    """As ``>&-`` leaves it: the next file that is opened would get the number."""


def full() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def nobody_reads() -> int:
    """As ``| head -0`` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def reader_leaves() -> int:
    """As ``| head -c 100`` does, which sees a little and goes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 100)
        os._exit(0)
    os.close(reading)
    return writing


def sound() -> int:
    return os.open(os.devnull, os.O_WRONLY)


STATES = [closed, full, nobody_reads, reader_leaves, sound]


def show(states, folder: Path | None = None) -> None:
    """Put stdout, and stderr where there is a second state, into a state."""
    if folder is not None:
        os.chdir(folder)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts
    places = [state() for state in states]
    for number, place in enumerate(places, start=1):
        if place is None:
            os.close(number)
        else:
            os.dup2(place, number)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("shown") / "run"
    assert drive(runs.train(run, recipe=RECIPE)) is None
    return run


COMMANDS = {
    "train": runs.train(Path("run"), recipe=RECIPE),
    "sweep": ["sweep", *RECIPE, "--out", "swept"],
    "reproduce": ["reproduce", "mini.toml"],
}


@count("T34")
@pytest.mark.parametrize("name", COMMANDS)
def test_t34_training_goes_on_without_its_display(name, times, tmp_path, undisturbed, chance, figure):
    for number in range(times):
        states = [STATES[number]] * 2 if number < len(STATES) else chance.choices(STATES, k=2)
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "mini.toml").write_text(SET)
        with command(COMMANDS[name], tmp_path, prepare=functools.partial(show, states, folder)) as job:
            assert job.wait() == 0, states
        (run,) = (path.parent for path in folder.rglob("record.json"))
        assert runs.differing(run, undisturbed) == []
    figure(ends=times)


@pytest.mark.parametrize(("state", "code"), [(closed, 0), (full, 1), (nobody_reads, 0)])
def test_t34_a_command_that_only_prints_says_what_was_lost(state, code, tmp_path):
    """To a disk that is full, not to a reader that has seen enough."""
    with command(["--version"], tmp_path, prepare=functools.partial(show, [state])) as job:
        assert job.wait() == code
        lost = "error: the output could not be written: [Errno 28] No space left on device\n"
        assert job.stderr == (lost if code else "")


def test_t34_an_epoch_is_saved_before_it_is_shown(tmp_path):
    """A reader that reads no more holds the run up for ever; what was done until then is on the disk."""
    run = tmp_path / "run"
    with command(runs.train(run, recipe=RECIPE), tmp_path, prepare=nearly_full) as job:
        wait_for(lambda: len(runs.checkpoints(run)) == 2 or job.poll() is not None)
        assert job.poll() is None
    assert runs.newest(run)["epochs_done"] == 1


def nearly_full() -> None:
    _, writing = os.pipe()
    os.set_blocking(writing, False)
    for size in (4096, 1):
        while True:
            try:
                os.write(writing, b"x" * size)
            except BlockingIOError:
                break
    os.set_blocking(writing, True)
    os.dup2(writing, 1)
