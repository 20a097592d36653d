"""The kinds of a sweep that come later are compiled ahead, in processes of their own.

Compiling holds up every run, because one thread drives them all. What another process compiles lies in the compiler's
cache on disk; the sweep then only traces the network, in a fraction of the time. Where a process fails, takes too long
or would find too little memory, each run compiles for itself.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from timestepper.recipe.load import as_dict, dump, loads
from timestepper.recipe.schema import Recipe
from timestepper.sweeps import beside
from timestepper.terminal import tell

LONGEST = 900.0  # seconds for one kind
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_AT_ONCE = max(1, min(4, _CORES // 4))
_LOOK = 0.05  # seconds between two looks at the processes


def kind_of(recipe: Recipe) -> str:
    """What compiled code depends on; seeds and starting values share theirs."""
    told = as_dict(recipe)
    network = told["model"] | {"last_norm_init": None}
    data = {name: told["data"][name] for name in ("name", "size", "batch_size", "accumulate", "test_batch_size")}
    return json.dumps([network, told["controller"], data, told["runtime"]])


class Ahead:
    """Compiles the kind of every recipe but the first one's, which the sweep begins with at once."""

    def __init__(self, recipes: Iterable[Recipe], tell: Callable[[str], None] = tell):
        kinds: dict[str, Recipe] = {}
        for recipe in recipes:
            if recipe.runtime.compile:
                kinds.setdefault(kind_of(recipe), recipe)
        self._to_come = list(kinds.items())[1:]
        self._running: dict[str, tuple[subprocess.Popen, float]] = {}
        self._tell = tell
        self._next_look = 0.0
        self._place: tempfile.TemporaryDirectory | None = None  # of the processes, made with the first

    def ready(self, kind: str) -> bool:
        """Whether there is nothing to wait for."""
        return kind not in self._running and all(kind != name for name, _ in self._to_come)

    def look(self) -> None:
        """Take note of what is done, and begin with the next; to be called often."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK
        for name, (process, began) in list(self._running.items()):
            if now - began > LONGEST:
                beside.end(process)
            if process.poll() is not None:
                del self._running[name]
                if process.returncode:
                    self._tell(f"compiling ahead has failed (exit {process.returncode}); each run compiles for itself")
        while self._to_come and len(self._running) < _AT_ONCE:
            if not _room():
                self._to_come.clear()
                break
            name, recipe = self._to_come.pop(0)
            self._place = self._place or tempfile.TemporaryDirectory(prefix="ahead-", ignore_cleanup_errors=True)
            with contextlib.suppress(OSError):  # no more processes: each run compiles for itself
                self._running[name] = _start(recipe, self._place.name), now

    def close(self) -> None:
        """End what still compiles."""
        self._to_come.clear()
        for process, _ in self._running.values():
            beside.end(process)
        if self._place is not None:
            self._place.cleanup()


def _start(recipe: Recipe, place: str) -> subprocess.Popen:
    threads = os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, _CORES // _AT_ONCE)))
    process = subprocess.Popen(
        [sys.executable, "-m", "timestepper.sweeps.ahead", place, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": threads},
        start_new_session=True,
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(dump(recipe).encode())
    return process


def _room() -> bool:
    """Whether a run more fits the GPU that trains, beyond doubt: half of its memory is free."""
    import torch

    if not torch.cuda.is_initialized():
        return True
    free, total = torch.cuda.mem_get_info()
    return free > total / 2


# -- in the process that compiles --------------------------------------------------------------------------------------


def compile_kind(recipe: Recipe, place: Path) -> None:
    """The run itself, of one batch, in a folder that is thrown away."""
    from timestepper.engine.progress import Display
    from timestepper.engine.rundir import RunDirectory
    from timestepper.engine.signals import Signals
    from timestepper.runs import build
    from timestepper.runs.run import Run
    from timestepper.runs.train import Process

    whole, wanted = build.dataset(recipe), recipe.data
    data = replace(whole, train=whole.train.some(wanted.batch_size), test=whole.test.some(wanted.test_batch_size))
    short = replace(recipe, run=replace(recipe.run, epochs=1, tensorboard=False, monitor=False))
    run = Run(short, "ahead", place / str(os.getpid()))
    with contextlib.closing(RunDirectory(run.path)) as folder:
        for _ in Process(run, folder, Signals(), display=Display(quiet=True), data=data).steps():
            pass


if __name__ == "__main__":
    beside.leave_with(int(sys.argv[2]))
    compile_kind(loads(sys.stdin.read(), "standard input"), Path(sys.argv[1]))
