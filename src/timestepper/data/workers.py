"""Worker processes around torch's DataLoader: the trainer's signals pass them by, their death is told in one line."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from timestepper.errors import LoaderError, TimestepperError, first_line

TRAINERS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Sent to the whole process group, and meant for the trainer: it still needs batches while it saves and stops."""

waiting = False
"""Whether the main thread is waiting for a batch right now; read by the signal handler."""


def worker_trouble(error: Exception) -> LoaderError:
    reason = first_line(error).rstrip(". ")
    return LoaderError(
        f"a data loader worker failed ({reason}); memory or shared memory probably ran out: "
        "use fewer workers, a smaller batch or a bigger /dev/shm"
    )


def parallel(reader: Any, keys: Sequence[Any], workers: int, pin_memory: bool) -> Generator[Any, None, None]:
    """`reader[key]` for every key, in order, computed by worker processes that live until this generator is closed."""
    batches = DataLoader(
        reader,
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=partial(start_worker, os.getpid()),
        generator=torch.Generator(),  # torch draws a base seed nobody needs; not from the global generator
    )
    others = multiprocessing.active_children()
    try:
        with signals_held():
            iterator: Any = iter(batches)
            tame_sigchld()
        try:
            processes = [child for child in multiprocessing.active_children() if child not in others]
            for _ in keys:
                yield wait_for_batch(iterator, processes)
        finally:
            # What torch does when its iterator is collected. An exception keeps that alive by its traceback, and as
            # part of a cycle it would wait five seconds for workers that it can no longer reach.
            iterator._shutdown_workers()
    except TimestepperError:
        raise
    except Exception as error:
        raise worker_trouble(error) from error


def wait_for_batch(iterator: Iterator[Any], processes: list[BaseProcess]) -> Any:
    """The next batch, or an error at once if a worker is dead: left to itself torch may wait for it for seconds."""
    global waiting
    waiting = True  # first: a worker that dies after the look below is told by the signal handler
    try:
        for process in processes:
            if not process.is_alive():
                raise RuntimeError(f"process {process.pid} ended with exit code {process.exitcode}")
        return next(iterator)
    finally:
        waiting = False


@contextmanager
def signals_held() -> Iterator[None]:
    """A signal between the fork and `start_worker` would end the worker; the workers inherit the mask.

    And the death of a worker would leave torch's iterator half made.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*TRAINERS_SIGNALS, signal.SIGCHLD))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(trainer: int, _number: int) -> None:
    """The trainer's process id comes from itself: a worker that asks for its parent may be an orphan by then."""
    # Called by the thread that hands batches over, whose traceback of a trainer that left meanwhile is no news.
    sys.excepthook = lambda *_: None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # elsewhere there is no way to learn who sent a signal
        signal.pthread_sigmask(signal.SIG_BLOCK, TRAINERS_SIGNALS)
        threading.Thread(target=leave_with_trainer, args=(trainer,), daemon=True).start()


def leave_with_trainer(trainer: int) -> None:
    """End this worker when the trainer is dead, or sends SIGTERM itself, as Python does to its children on leaving.

    A worker that ignored that too would keep the trainer waiting for ever; and torch's own watch takes five seconds
    or more to notice that the trainer was killed.
    """
    while os.getppid() == trainer:
        received = signal.sigtimedwait({signal.SIGTERM}, 0.5)
        if received is not None and received.si_pid == trainer:
            break
    os._exit(0)


def tame_sigchld() -> None:
    """Let torch's SIGCHLD handler raise only while a batch is awaited.

    It tells a worker's death by an exception in whatever line the trainer is, again and again, be it in the middle
    of saving a checkpoint. A death at other times is noticed when the next batch is asked for.
    """
    current = signal.getsignal(signal.SIGCHLD)
    if getattr(current, "tamed", False) or not callable(current):
        return
    if threading.current_thread() is not threading.main_thread():
        return

    def handler(number: int, frame: FrameType | None) -> None:
        try:
            current(number, frame)
        except RuntimeError:
            if waiting:
                raise

    handler.tamed = True  # type: ignore[attr-defined]
    signal.signal(signal.SIGCHLD, handler)
