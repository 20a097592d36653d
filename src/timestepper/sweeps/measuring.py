"""Runs of a sweep are measured as soon as they have ended, in one process beside it, one after the other.

One thread drives all runs of a sweep: measured there, one would hold up the others. What goes wrong concerns one run
alone. Nothing is lost with a process that is killed: a record has what was measured so far.
"""

import contextlib
import gc
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from timestepper import records
from timestepper.engine.signals import leaving
from timestepper.errors import TimestepperError, in_words
from timestepper.recipe.load import dump, import_controller, loads
from timestepper.runs.run import FAILED, INTERRUPTED, Run
from timestepper.sweeps import beside
from timestepper.terminal import tell

_PATIENCE = 20.0  # seconds for the work that the device was given


class Measuring:
    """Takes finished runs. Those of whose record nothing is asked, or nothing is missing, are left as they are."""

    def __init__(self, tell: Callable[[str], None] = tell):
        self._to_do: list[Run] = []
        self._now: Run | None = None
        self._process: subprocess.Popen | None = None
        self._tell = tell

    @property
    def busy(self) -> bool:
        """Whether a run is still to be measured."""
        return bool(self._now or self._to_do)

    def add(self, run: Run) -> None:
        """Measure a run when those before it are done."""
        with contextlib.suppress(TimestepperError):  # its record has just been published, so it is sound
            if run.results is not None and set(run.measures) - records.read(run.path).keys():
                self._to_do.append(run)

    def look(self) -> None:
        """Take note of what is done, and begin with the next; to be called often."""
        if self._now is not None and (wrong := self._answer()) is not None:
            run, self._now = self._now, None
            if wrong:
                run.state, run.message = FAILED, f"trained and recorded, but not measured: {wrong}"
            self._tell(f"{run.label}: {run.message if wrong else 'measured'}")
        if self._now is None and self._to_do:
            self._now = self._to_do.pop(0)
            with contextlib.suppress(OSError):  # it has no process: the next look says so
                self._begin(self._now)

    def close(self) -> None:
        """End the process; a run that it has not measured says so."""
        if self._process is not None:
            self._process.terminate()  # not killed: in the midst of its work it may take the others on the GPU with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE)
            beside.end(self._process)
        for run in filter(None, [self._now, *self._to_do]):
            run.state, run.message = INTERRUPTED, "trained and recorded; the same command goes on with measuring"

    def _begin(self, run: Run) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "timestepper.sweeps.measuring", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        order = [str(run.path), str(run.results), run.measures, dump(run.recipe)]
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def _answer(self) -> str | None:
        """What went wrong, nothing ("") or not known yet (None); a process that has met an error has ended with it."""
        if self._process is None:
            return "no process could be started; the same command tries it again"
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], 0)[0]:
            return None
        line = self._process.stdout.readline()
        if line and not (wrong := json.loads(line)):
            return ""
        process, self._process = self._process, None
        beside.end(process)
        return wrong if line else f"its process has ended ({process.returncode}); the same command tries it again"


def _serve() -> None:
    """In the process: a line for every run, and one back for each."""
    with os.fdopen(os.dup(1), "w") as answers, leaving():
        os.dup2(2, 1)  # where others may print
        for line in sys.stdin:
            wrong = _measure(*json.loads(line))
            print(json.dumps(wrong), file=answers, flush=True)
            if wrong:
                return  # the device may be of no use any more


def _measure(path: str, results: str, wanted: list[str], recipe: str) -> str:
    """What went wrong."""
    import torch

    from timestepper.runs.measure import complete

    try:
        own = loads(recipe, path)
        import_controller(own, path)
        complete(Path(path), Path(results), wanted, own)
    except Exception as error:  # foreign code can raise anything
        return str(error) if isinstance(error, TimestepperError) else in_words(error)
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):  # a broken device has been told of
                torch.cuda.synchronize()  # MPS asks for it before a process ends
                torch.cuda.empty_cache()  # the others may need it while there is nothing to measure
    return ""


if __name__ == "__main__":
    beside.leave_with(int(sys.argv[1]))
    _serve()
