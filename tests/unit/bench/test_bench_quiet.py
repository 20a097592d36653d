"""Background work stands still while the clock counts: real processes, their state read from /proc."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from timestepper.bench import quiet

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper(request):
    with subprocess.Popen(SLEEPER, env=os.environ | request.param, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def state(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(process, wanted):
    end = time.monotonic() + 300
    while state(process) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    return state(process) == wanted


@pytest.mark.parametrize("sleeper", [{quiet.MARK: "1"}], indirect=True)
def test_marked_processes_stop_and_go_on_even_after_an_error(sleeper):
    def measure():
        with quiet.quiet():
            assert becomes(sleeper, "T")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        measure()
    assert becomes(sleeper, "S")


@pytest.mark.parametrize("sleeper", [{}, {quiet.MARK: "0"}], indirect=True)
def test_others_are_left_alone(sleeper):
    with quiet.quiet():
        assert state(sleeper) != "T"
        assert sleeper.pid not in quiet.background()


def test_a_benchmark_does_not_stop_itself():
    code = "from timestepper.bench import quiet; import os; print(os.getpid() in quiet.background())"
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, env=os.environ | {quiet.MARK: "1"}, capture_output=True, text=True, check=True)
    assert answer.stdout == "False\n"


def test_only_one_benchmark_has_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(quiet, "_LOCK", tmp_path / "lock")
    with quiet.quiet(), (tmp_path / "lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
