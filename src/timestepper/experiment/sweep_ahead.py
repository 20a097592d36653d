"""The kinds of a sweep that come later are compiled ahead, in processes of their own.

Compiling holds up every run, because one thread drives them all. What another process compiles lies in the compiler's
cache on disk; the sweep then only traces the network, in a fraction of the time. A process that fails or takes too long
costs nothing but that: the sweep compiles for itself.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from timestepper.experiment.load import as_dict, dump, loads
from timestepper.experiment.schema import Recipe

LONGEST = 900.0  # seconds for one kind
_AT_ONCE = max(1, (os.cpu_count() or 1) // 4)


def kind_of(recipe: Recipe) -> str:
    """What compiled code depends on; seeds and starting values share theirs."""
    told = as_dict(recipe)
    network = told["model"] | {"last_norm_init": None}
    return json.dumps([network, told["controller"], told["data"], told["runtime"]])


class Ahead:
    """Compiles the kind of every recipe but the first one's, which the sweep begins with at once."""

    def __init__(self, recipes: Iterable[Recipe]):
        kinds = {kind_of(recipe): recipe for recipe in reversed([r for r in recipes if r.runtime.compile])}
        self._to_come = list(reversed(kinds.items()))[1:]
        self._running: dict[str, tuple[subprocess.Popen, float]] = {}

    def ready(self, kind: str) -> bool:
        """Whether there is nothing to wait for."""
        for name, (process, began) in list(self._running.items()):
            if time.monotonic() - began > LONGEST:
                process.kill()
            if process.poll() is not None:
                del self._running[name]
        while self._to_come and len(self._running) < _AT_ONCE:
            name, recipe = self._to_come.pop(0)
            self._running[name] = _start(recipe), time.monotonic()
        return kind not in self._running and all(kind != name for name, _ in self._to_come)

    def close(self) -> None:
        """End what still compiles."""
        self._to_come = []
        for process, _ in self._running.values():
            process.kill()
            process.wait()


def _start(recipe: Recipe) -> subprocess.Popen:
    threads = os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, (os.cpu_count() or 1) // _AT_ONCE)))
    process = subprocess.Popen(
        [sys.executable, "-m", "timestepper.experiment.sweep_ahead"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": threads},
        start_new_session=True,  # Ctrl-C is for the sweep, which ends this process
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(dump(recipe).encode())
    return process


def compile_kind(recipe: Recipe) -> None:
    """The run itself, of one batch, in a folder that is thrown away."""
    from timestepper.engine.progress import Display
    from timestepper.engine.rundir import RunDirectory
    from timestepper.engine.signals import Signals
    from timestepper.experiment import build
    from timestepper.experiment.run import Request, Session

    whole, wanted = build.dataset(recipe), recipe.data
    data = replace(whole, train=whole.train.first(wanted.batch_size), test=whole.test.first(wanted.test_batch_size))
    short = replace(recipe, run=replace(recipe.run, epochs=1, tensorboard=False, monitor=False))
    with tempfile.TemporaryDirectory() as place, contextlib.closing(RunDirectory(Path(place) / "run")) as folder:
        session = Session(Request(short, "ahead", folder, Signals(), display=Display(quiet=True), data=data))
        with session.told():
            session.join()
            session.training().run()


if __name__ == "__main__":
    compile_kind(loads(sys.stdin.read(), "standard input"))
