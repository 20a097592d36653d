"""Signals become two integers that the loop polls; nothing else happens inside a handler, once there is a loop."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from timestepper import torchrun
from timestepper.errors import Leave

# One Ctrl-C reaches a worker of torchrun twice: from the terminal and from torchrun itself.
_ECHO_SECONDS = 2.0
_STOPPING = b"\nstopping after this step; once more to leave at once\n"
_LEAVING = b"\nstopped before it began; nothing has changed, and the same command goes on\n"
_CLUSTER = ("SLURM_JOB_ID", "SUBMITIT_EXECUTOR")  # set in its jobs


class Signals:
    """``stop`` is the number of the signal that asked to stop (0: none); ``save`` is set by SIGUSR1.

    While ``leave`` is set there is nothing to save, and a signal to stop leaves at once.
    """

    def __init__(self) -> None:
        self.stop = 0
        self.save = 0
        self.leave = False
        self._since = 0.0
        self._parent = os.getppid()
        self._previous: dict[int, object] = {}

    def install(self, leave: bool = False) -> "Signals":
        """Catch SIGINT, SIGTERM, SIGUSR2 and, without nohup, SIGHUP (save, then stop), and SIGUSR1 (save and go on).

        A second one to stop leaves at once, unless it is a cluster's, which kills in the end, or that of a closed
        terminal: both say so several times.
        """
        self.leave = leave
        self._set(self._on_stop)
        return self

    def poll(self) -> int:
        """The signal that asked to stop; a process whose torchrun, or whose local job, was killed stops as if told to.

        Nobody could stop it otherwise, and it would be in the way of the one that takes its place.
        """
        owned = torchrun.agent() or os.environ.get("SUBMITIT_EXECUTOR") == "local"
        if owned and os.getppid() != self._parent:
            self.stop = self.stop or signal.SIGTERM
        return self.stop

    def wait(self) -> "Signals":
        """Until :meth:`install`, let SIGINT and SIGTERM end the process: there is nothing to save yet.

        A process that waits for others inside torch would not come to run a handler.
        """
        self._set(signal.SIG_DFL)
        return self

    def _set(self, on_stop: Any) -> None:
        handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGUSR2), on_stop)
        handlers[signal.SIGUSR1] = self._on_save
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            handlers[signal.SIGHUP] = on_stop
        for number, handler in handlers.items():
            self._previous.setdefault(number, signal.signal(number, handler))

    def restore(self) -> None:
        """Put back the handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.stop == 0:
            self.stop, self._since = number, now
            if torchrun.rank() == 0:
                with contextlib.suppress(OSError):
                    os.write(2, _LEAVING if self.leave else _STOPPING)
            if self.leave:
                raise Leave(128 + number)  # so that whoever has begun something removes it
        elif number == signal.SIGHUP or (number != signal.SIGINT and any(name in os.environ for name in _CLUSTER)):
            return
        elif not torchrun.agent() or now - self._since > _ECHO_SECONDS:
            for worker in multiprocessing.active_children():
                worker.kill()
            os._exit(128 + number)

    def _on_save(self, number: int, frame: FrameType | None) -> None:
        self.save = 1


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """SIGTERM raises, as Ctrl-C does: around work that has nothing to save, so that somebody can say how to go on."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise Leave(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
