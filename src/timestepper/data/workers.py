"""Worker processes that read images into shared memory: many share a batch, their death is told in one line."""

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Generator, Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from timestepper.data.windows import View
from timestepper.data.worker import Memory
from timestepper.errors import DataError, LoaderError

_TO_STOP = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
TRAINERS_SIGNALS = (*_TO_STOP, signal.SIGUSR1)
"""Sent to the whole process group, and meant for the trainer: it still needs batches while it saves and stops."""

AHEAD = 4  # batches that are being made
_SHARE = 16  # samples that a worker is given at a time

Sample = tuple[str, int] | None
"""Path and seed; None: an empty slot, which stays black."""


class Workers:
    """Processes that live until `close`, or until they are forgotten or the trainer ends, however it ends.

    Interpreters of their own and not forks: a fork takes along what the trainer has of the GPU, of which it could not
    even dispose, and costs the longer the larger the trainer is. They know no torch and so start quickly.
    """

    def __init__(self, count: int, view: View, batch: int, room: int = 0):
        """With `room`, JPEGs of at most so many bytes are not decoded but handed over for a GPU to do it."""
        self._batch = batch
        memory = _memory(AHEAD * batch * Memory.bytes_each(view.size, room))
        self.memory = Memory(memory, view.size, room)
        self._processes: dict[Connection, subprocess.Popen] = {}
        self._load: dict[Connection, int] = {}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, TRAINERS_SIGNALS)  # inherited, and never unblocked
        try:
            for _ in range(count):
                if self._processes and signal.sigpending() & _TO_STOP:
                    break  # the trainer is to stop: those that are there suffice for that
                ours, theirs = Pipe()
                self._processes[ours] = _start(theirs.fileno(), memory, room, view)
                self._load[ours] = 0
                theirs.close()
        except OSError as error:
            _end(self._processes, os.getpid())
            raise _trouble(f"cannot be started: {error.strerror}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(memory)
        self.close = weakref.finalize(self, _end, self._processes, os.getpid())

    def batches(self, jobs: Iterable[Sequence[Sample]]) -> Generator[tuple[Sequence[Sample], slice], None, None]:
        """Each job in order and its places in the memory, which are used again when the next ones are asked for.

        A generator that is left before its end ends the workers: they have jobs that nobody wants.
        """
        self._missing = [0] * AHEAD
        self._errors: list[dict[int, str]] = [{} for _ in range(AHEAD)]
        self._jobs: list[Sequence[Sample]] = [()] * AHEAD
        given = -1
        try:
            for given, job in enumerate(jobs):
                if given >= AHEAD:
                    yield self._take(given % AHEAD)
                self._give(given % AHEAD, job)
            for number in range(max(0, given + 1 - AHEAD), given + 1):
                yield self._take(number % AHEAD)
            given = -1
        finally:
            if given >= 0:
                self.close()

    def _give(self, slot: int, job: Sequence[Sample]) -> None:
        """To the workers that have least to do."""
        self._jobs[slot] = job
        used = sum(sample is not None for sample in job)  # the empty slots come last
        empty = slice(slot * self._batch + used, (slot + 1) * self._batch)
        self.memory.pixels[empty], self.memory.rows["bytes"][empty] = 0, 0
        for first in range(0, used, _SHARE):
            self._listen(0.0)  # a worker whose answers nobody reads reads no jobs: both would wait for ever
            worker = min(self._load, key=self._load.__getitem__)
            try:
                worker.send((slot * self._batch + first, job[first : min(first + _SHARE, used)]))
            except OSError:
                raise self._death(worker) from None
            self._load[worker] += 1
            self._missing[slot] += 1

    def _take(self, slot: int) -> tuple[Sequence[Sample], slice]:
        """A slot once it is full."""
        self._listen(0.0)  # in any case, so that a death does not go unnoticed
        while self._missing[slot]:
            self._listen(None)
        if self._errors[slot]:
            raise DataError(min(self._errors[slot].items())[1])
        return self._jobs[slot], slice(slot * self._batch, (slot + 1) * self._batch)

    def _listen(self, patience: float | None) -> None:
        for worker in wait(list(self._load), patience):
            assert isinstance(worker, Connection)
            self._hear(worker)

    def _hear(self, worker: Connection) -> None:
        """All that it has said: its end comes behind that."""
        try:
            while worker.poll():
                place, error = worker.recv()
                self._load[worker] -= 1
                self._missing[place // self._batch] -= 1
                if error is not None:
                    self._errors[place // self._batch][place] = error
        except (EOFError, OSError):
            raise self._death(worker) from None

    def _death(self, worker: Connection) -> LoaderError:
        process = self._processes[worker]
        worker.close()
        return _trouble(f"process {process.pid} ended with exit code {process.wait()}")


def _memory(size: int) -> int:
    """A file in memory and in no file system, so that the size of /dev/shm does not matter."""
    try:
        if sys.platform == "linux":
            descriptor = os.memfd_create("timestepper")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.truncate(descriptor, size)
    except OSError as error:
        raise _trouble(f"no memory to share: {error.strerror}") from error
    return descriptor


def _start(channel: int, memory: int, room: int, view: View) -> subprocess.Popen:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from timestepper.data.worker import main; "
        f"main({os.getpid()}, {channel}, {memory}, {room}, {tuple(view)!r})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=(channel, memory),
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def _end(processes: dict[Connection, subprocess.Popen], trainer: int) -> None:
    if os.getpid() == trainer:  # and not a fork of it that leaves
        for channel, process in processes.items():
            channel.close()
            process.kill()
        for process in processes.values():
            process.wait()


def _trouble(reason: str) -> LoaderError:
    return LoaderError(
        f"a data loader worker failed ({reason}); memory probably ran out: use fewer workers or a smaller batch"
    )
