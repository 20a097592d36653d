"""Several runs in one process: each on a CUDA stream of its own with its own CUDA graphs, one copy of the data for all.

A network for small images leaves most of a GPU idle; the steps of several runs fill it. The runs take turns on the
host, one step each: a turn only hands work to the device, and a run that would have to wait for the device is passed
over. A run computes the same whether alone or among others, and its failure is its own.
"""

import contextlib
import gc
import os
import re
import signal
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence

import torch

from timestepper.engine.loop import Interrupted
from timestepper.engine.progress import Display
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import choose_device
from timestepper.engine.signals import Signals
from timestepper.errors import LaunchError, TimestepperError, in_words
from timestepper.runs.resume import refuse_other_images
from timestepper.runs.run import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, Run
from timestepper.runs.start import widen_device_queue
from timestepper.runs.train import Process
from timestepper.sweeps.ahead import Ahead, kind_of
from timestepper.sweeps.beside import GPU_PROCESSES
from timestepper.sweeps.display import Board, summary_lines
from timestepper.sweeps.measuring import Measuring
from timestepper.sweeps.plan import Shared
from timestepper.terminal import tell

ALREADY = "already finished"
_END = object()
_PAUSE = 50e-6  # seconds, where every run waits for the device
_LONG_PAUSE = 0.05  # where there is no run yet whose kind is ready


def bring_to_end(
    runs: Sequence[Run],
    signals: Signals | None = None,
    *,
    jobs: int = 6,
    debug: bool = False,
    parent: int | None = None,
    plain: bool = True,
) -> int:
    """Train all runs, so many at a time, and print how each of them ended; the exit code."""
    signals = signals or Signals().install()
    widen_device_queue([run.recipe for run in runs], jobs)
    try:
        sweep(runs, signals, jobs=jobs, debug=debug, parent=parent, plain=plain)
    finally:
        signals.restore()
    tell("\n".join(summary_lines(runs)))
    return exit_code(runs, signals.stop)


def sweep(
    runs: Sequence[Run],
    signals: Signals,
    *,
    jobs: int = 6,
    debug: bool = False,
    parent: int | None = None,
    plain: bool = False,
    shared: Shared | None = None,
) -> None:
    """Train all runs, so many at a time; how each of them ended is in its ``state`` and ``message``.

    ``parent`` is a process that this one must not outlive; ``shared`` may have data sets open already.
    """
    shared = shared or Shared()
    with Board(plain) as board:
        for run in runs:
            run.state, run.message = WAITING, ""
        turns = {run: take(run, board.add(run), shared, debug) for run in runs}
        to_do = [run.recipe for run in runs if not run.is_finished]
        with (
            contextlib.closing(Ahead(to_do, board.tell)) as ahead,
            contextlib.closing(Measuring(board.tell)) as measuring,
        ):
            take_turns(turns, signals, jobs, ahead, measuring, parent)


def take(run: Run, display: Display, shared: Shared, debug: bool = False) -> Iterator[Process]:
    """The steps of a run, on a stream of its own. What goes wrong concerns this run alone and is not raised."""
    stream, process = None, None
    try:
        if run.is_finished:
            refuse_other_images(run, lambda recipe: shared.dataset(recipe, choose_device(recipe.runtime.device)))
            run.publish()
            run.state, run.message = ALREADY, "nothing to do"
        else:
            run.state = RUNNING
            device = choose_device(run.recipe.runtime.device)
            stream = torch.cuda.Stream(device) if device.type == "cuda" else None
            data = shared.dataset(run.recipe, device)
            with contextlib.closing(RunDirectory(run.path)) as folder:
                process = Process(run, folder, Signals(), display=display, data=data)
                yield from on_stream(stream, process)
                run.state, run.message = FINISHED, f"test error {process.final['test']['error']:.2%}"
    except Interrupted as stop:
        run.state = INTERRUPTED
        run.message = f"stopped at step {stop.step}, which is saved; the same command goes on from there"
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # foreign code can raise anything
        if debug:
            traceback.print_exc()
        known = isinstance(error, TimestepperError)
        run.state, run.message = FAILED, str(error) if known else in_words(error)
    process = None  # out here the error is gone too, and with it what its traceback held
    gc.collect()
    if stream is not None:
        with contextlib.suppress(RuntimeError):  # a broken device is for the other runs to notice
            stream.synchronize()
            torch.cuda.empty_cache()
    display.tell(f"{run.state}: {run.message}")


def on_stream(stream: torch.cuda.Stream | None, process: Process) -> Iterator[Process]:
    """All steps, with the stream as the current one in each and not between them."""
    with contextlib.closing(process.steps()) as steps:
        while True:
            with torch.cuda.stream(stream):  # None leaves the current one as it is
                if next(steps, _END) is _END:
                    return
            yield process


def take_turns(
    turns: Mapping[Run, Iterator[Process]],
    signals: Signals,
    jobs: int,
    ahead: Ahead,
    measuring: Measuring,
    parent: int | None = None,
) -> None:
    """Round and round; a run begins when there is room and its kind is ready, and none once a signal asks to stop."""
    waiting, active = {run: kind_of(run.recipe) for run in turns}, dict[Run, Process | None]()
    configured: tuple[str, bool] | None = None
    processes = _processes()
    while active or ((waiting or measuring.busy) and not signals.stop):
        if parent is not None and os.getppid() != parent:
            signals.stop = signals.stop or signal.SIGTERM
        signals.poll()
        ahead.look()
        measuring.look()
        if len(active) < jobs and not signals.stop:
            for run in [run for run, kind in waiting.items() if ahead.ready(kind)][: jobs - len(active)]:
                del waiting[run]
                active[run] = None
        save, signals.save = signals.save, 0
        moved = False
        for run, process in list(active.items()):
            run.sharing = len(active) * processes
            if process is not None:
                process.signals.stop, process.signals.save = signals.stop, process.signals.save or save
                if process.idle:
                    continue
                if process.runtime.kept != configured:
                    process.runtime.configure()
            moved = True
            active[run] = process = next(turns[run], None)
            configured = process.runtime.kept if process else None
            if process is None:
                del active[run]
                if run.state in (FINISHED, ALREADY):
                    measuring.add(run)
        if not moved:
            time.sleep(_PAUSE if active else _LONG_PAUSE)


def _processes() -> int:
    """How many sweeps share the GPU, this one among them."""
    told = os.environ.get(GPU_PROCESSES, "1")
    if re.fullmatch("[1-9][0-9]{0,2}", told) is None:
        raise LaunchError(
            f"the environment says {GPU_PROCESSES}={told[:40]!r}; it must be how many sweeps share the GPU, 1 to 999"
        )
    return int(told)


def exit_code(runs: Sequence[Run], stop: int) -> int:
    """0 where all are finished, 128 + signal where one was stopped by it, 1 where one failed."""
    states = {run.state for run in runs}
    if states <= {FINISHED, ALREADY}:
        return 0
    return 128 + stop if stop and states & {INTERRUPTED, WAITING} else 1
