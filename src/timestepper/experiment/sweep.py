"""Several runs in one process: each on a CUDA stream of its own with its own CUDA graphs, one copy of the data for all.

A network for small images leaves most of a GPU idle; the steps of several runs fill it. The runs take turns on the
host, one step each: a turn only hands work to the device, and a run that would have to wait for the device is passed
over. A run computes the same whether alone or among others, and its failure is its own.
"""

import contextlib
import gc
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from timestepper import records
from timestepper.data import ArrayImages, Dataset
from timestepper.engine.loop import Interrupted, Training
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import Runtime, choose_device
from timestepper.engine.signals import Signals
from timestepper.errors import TimestepperError, first_line
from timestepper.experiment import build
from timestepper.experiment.run import Request, Session
from timestepper.experiment.schema import Recipe
from timestepper.experiment.start import is_finished
from timestepper.experiment.sweep_ahead import Ahead, kind_of
from timestepper.experiment.sweep_display import Board, RunDisplay
from timestepper.experiment.sweep_plan import Entry

_PAUSE = 50e-6  # seconds, where every run waits for the device
_LONG_PAUSE = 0.05  # where there is no run yet whose kind is ready


@dataclass(frozen=True)
class Options:
    """What holds for all runs."""

    jobs: int = 6
    override: bool = False
    results: Path | None = None
    debug: bool = False
    parent: int | None = None  # process that this one must not outlive


class Shared:
    """Data sets, each opened once and, where it fits, put on the device once."""

    def __init__(self) -> None:
        self._open: dict[Any, Dataset] = {}

    def dataset(self, recipe: Recipe, device: torch.device) -> Dataset:
        wanted = recipe.data
        key = (wanted.name, wanted.root, wanted.size, wanted.resize, device)
        if key not in self._open:
            found = build.dataset(recipe)
            if isinstance(found.train, ArrayImages) and isinstance(found.test, ArrayImages):
                found = replace(found, train=found.train.to(device), test=found.test.to(device))
            self._open[key] = found
        return self._open[key]


class Turns:
    """One run among others: :meth:`turn` takes it one step further and never raises what concerns this run alone."""

    def __init__(self, entry: Entry, display: RunDisplay, shared: Shared, options: Options):
        self.entry, self.display = entry, display
        self.kind = kind_of(entry.recipe)
        self.signals = Signals()  # never installed: the sweep hands its own on
        self.outcome = "waiting"  # then running, and finished, already finished, interrupted or failed
        self.message = ""
        self._shared, self._options = shared, options
        self._session: Session | None = None
        self._steps: Iterator[object] = self._whole()
        self._stream: torch.cuda.Stream | None = None

    @property
    def runtime(self) -> Runtime | None:
        """How the run computes, once that is known."""
        return getattr(self._session, "runtime", None)

    @property
    def training(self) -> Training | None:
        """The run itself, while it is there."""
        return self._session._training if self._session else None

    @property
    def idle(self) -> bool:
        """Whether the run would only wait for the device."""
        training = self.training
        return training is not None and training.waiting is not None and not training.waiting.query()

    def turn(self) -> bool:
        """One step; whether there is more to do."""
        try:
            with torch.cuda.stream(self._stream) if self._stream else contextlib.nullcontext():
                next(self._steps)
            return True
        except StopIteration:
            outcome, message = "finished" if self.outcome == "running" else self.outcome, self.message
        except Interrupted as stop:
            outcome = "interrupted"
            message = f"stopped at step {stop.step}, which is saved; the same command goes on from there"
        except Exception as error:
            if self._options.debug:
                traceback.print_exc()
            known = isinstance(error, TimestepperError)
            outcome, message = "failed", str(error) if known else f"{type(error).__name__}: {first_line(error)}"
        self._end(outcome, message)  # out here the error is gone, and with it what its traceback held
        return False

    def _whole(self) -> Iterator[object]:
        entry, options = self.entry, self._options
        if is_finished(entry.recipe, entry.path):
            if options.results is not None:
                records.publish(entry.path, options.results)
            self.outcome, self.message = "already finished", "nothing to do"
            return
        self.outcome = self.display.state = "running"
        with contextlib.closing(RunDirectory(entry.path)) as folder:
            device = choose_device(entry.recipe.runtime.device)
            if device.type == "cuda":
                self._stream = torch.cuda.Stream(device)
            data = self._shared.dataset(entry.recipe, device)
            request = Request(
                entry.recipe,
                entry.name,
                folder,
                self.signals,
                override=options.override,
                results=options.results,
                display=self.display,
                data=data,
            )
            self._session = session = Session(request)
            with session.told():
                session.join()
                yield None  # from the next turn on, the stream above is the current one
                yield from session.training().steps()
                final = session.finish()
        self.message = f"test error {final['test']['error']:.2%}"

    def _end(self, outcome: str, message: str) -> None:
        """Note how it ended and let go of all memory."""
        self.outcome = self.display.state = outcome
        self.message = message
        self.display.say(f"{outcome}: {message}")
        self._session, self._steps = None, iter(())
        gc.collect()
        if self._stream is not None:
            with contextlib.suppress(RuntimeError):  # a broken device is for the other runs to notice
                self._stream.synchronize()
                torch.cuda.empty_cache()


def sweep(
    entries: Iterable[Entry], signals: Signals, options: Options, plain: bool = False, shared: Shared | None = None
) -> list[Turns]:
    """Train all entries, so many at a time; how each of them ended. ``shared`` may have data sets open already."""
    with Board(plain) as board:
        shared = shared or Shared()
        runs = [Turns(entry, board.add(entry.label), shared, options) for entry in entries]
        to_do = [run.entry.recipe for run in runs if not is_finished(run.entry.recipe, run.entry.path)]
        with contextlib.closing(Ahead(to_do, board.say)) as ahead:
            take_turns(runs, signals, options, ahead)
    return runs


def take_turns(runs: Iterable[Turns], signals: Signals, options: Options, ahead: Ahead) -> None:
    """Round and round; a run begins when there is room and its kind is ready, and none once a signal asks to stop."""
    waiting, active = list(runs), list[Turns]()
    configured: tuple[str, bool] | None = None
    while active or (waiting and not signals.stop):
        if options.parent is not None and os.getppid() != options.parent:
            signals.stop = signals.stop or signal.SIGTERM
        ahead.look()
        room = options.jobs - len(active)
        if waiting and room and not signals.stop:
            ready = {kind for kind in {run.kind for run in waiting} if ahead.ready(kind)}
            begin = [run for run in waiting if run.kind in ready][:room]
            waiting = [run for run in waiting if run not in begin]
            active += begin
        save, signals.save = signals.save, 0
        moved = False
        for run in list(active):
            run.signals.stop, run.signals.save = signals.stop, run.signals.save or save
            if run.idle:
                continue
            moved = True
            if run.runtime is not None and _settings(run.runtime) != configured:
                run.runtime.configure()
            if not run.turn():
                active.remove(run)
                configured = None
            elif run.runtime is not None:
                configured = _settings(run.runtime)
        if not moved:
            time.sleep(_PAUSE if active else _LONG_PAUSE)


def _settings(runtime: Runtime) -> tuple[str, bool]:
    """What torch keeps for the whole process, and runs may differ in."""
    return runtime.precision, runtime.deterministic


def summary_lines(runs: list[Turns]) -> list[str]:
    """What a person reads at the end."""
    width = max(len(run.entry.label) for run in runs)
    lines = [f"{run.entry.label:{width}s}  {run.outcome:16s}  {run.message}" for run in runs]
    counts = Counter(run.outcome for run in runs)
    return [*lines, f"{len(runs)} runs: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())]


def exit_code(runs: list[Turns], stop: int) -> int:
    """0 where all are finished, 1 where one failed, 128 + signal where one asked to stop."""
    outcomes = {run.outcome for run in runs}
    if "failed" in outcomes:
        return 1
    return 0 if outcomes <= {"finished", "already finished"} else 128 + stop
