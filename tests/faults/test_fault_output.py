"""What is shown has no say in what is computed: stdout and stderr that are closed, full or read by nobody (T34)."""

import functools
import os
import signal

import pytest
import runs
from counts import count
from processes import command
from stopping import drive
from watching import wait_for

RECIPE = [*runs.SHORT, "run.epochs=1"]


def closed() -> None:
    """As ``>&- 2>&-`` leaves it: the next file that is opened would get the number."""
    os.close(1)
    os.close(2)


def full() -> None:
    _both(os.open("/dev/full", os.O_WRONLY))


def nobody_reads() -> None:
    """As ``| head -0`` leaves it."""
    reading, writing = os.pipe()
    os.close(reading)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # as Python starts
    _both(writing)


def _both(descriptor: int) -> None:
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


STATES = [closed, full, nobody_reads]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = tmp_path_factory.mktemp("shown") / "run"
    assert drive(runs.train(run, recipe=RECIPE)) is None
    return run


@pytest.mark.parametrize("state", STATES)
def test_t34_training_goes_on_without_its_display(state, tmp_path, undisturbed):
    run = tmp_path / "run"
    with command(runs.train(run, recipe=RECIPE), tmp_path, prepare=state) as job:
        assert job.wait() == 0
    assert runs.differing(run, undisturbed) == []


@count("T34")
@pytest.mark.parametrize("state", STATES)
def test_t34_sweep_and_reproduce_go_on_too(state, times, tmp_path, undisturbed):
    (tmp_path / "mini.toml").write_text(
        f'set = "mini"\ntitle = "Digits"\nseeds = [0]\n[[train]]\nbase = "smoke/digits"\noverrides = {RECIPE[1:]}\n'
        "hours = 0.01\n"
    )
    lines = [["sweep", *RECIPE, "--out", "swept"], ["reproduce", "mini.toml"]][:times]
    for line in lines:
        with command(line, tmp_path, prepare=functools.partial(_there, tmp_path, state)) as job:
            assert job.wait() == 0
    found = sorted(path.parent for path in tmp_path.rglob("record.json"))
    assert len(found) == len(lines)
    for run in found:
        assert runs.differing(run, undisturbed) == []


def _there(folder, state) -> None:
    os.chdir(folder)
    state()


@pytest.mark.parametrize(("state", "code"), [(closed, 0), (full, 1), (nobody_reads, 0)])
def test_t34_a_command_that_only_prints_says_what_was_lost(state, code, tmp_path):
    """To a disk that is full, not to a reader that has seen enough."""
    with command(["--version"], tmp_path, prepare=functools.partial(_out_only, state)) as job:
        assert job.wait() == code
        lost = "error: the output could not be written: [Errno 28] No space left on device\n"
        assert job.stderr == (lost if code else "")


def _out_only(state) -> None:
    kept = os.dup(2)
    state()
    os.dup2(kept, 2)


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
