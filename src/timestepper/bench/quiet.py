"""A device to oneself while times are taken.

Compiling takes minutes and leaves the GPU idle, so a machine that is paid by the hour has training runs beside the
benchmarks. Whatever was started with ``TIMESTEPPER_BACKGROUND=1`` is stopped for the seconds in which the clock counts
and goes on afterwards; benchmarks that run beside each other take turns with the clock.
"""

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from timestepper.files import make_folder, open_own

MARK = "TIMESTEPPER_BACKGROUND"
_LOCK = Path(os.path.expanduser("~/.cache/timestepper/clock.lock"))  # where nobody else can put a link
_DRAIN = 0.5  # seconds until what stopped processes had handed to the device is done


def background() -> list[int]:
    """Processes that carry the mark, this one left out; none where there is no /proc."""
    wanted = f"{MARK}=1".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # gone meanwhile, or not ours
            if wanted in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Stop marked processes, wait for the turn of other benchmarks, and let everything go on at the end."""
    make_folder(_LOCK.parent)
    with open_own(_LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stopped = background()
        try:
            for pid in stopped:
                _send(pid, signal.SIGSTOP)
            if stopped:
                time.sleep(_DRAIN)
            yield
        finally:
            for pid in stopped:
                _send(pid, signal.SIGCONT)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
