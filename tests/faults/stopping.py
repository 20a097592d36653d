"""A run driven step by step in one process, stopped by a real signal after an exact number of them."""

import os
import signal
from pathlib import Path

from timestepper.engine.loop import Interrupted
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.recipe.load import load
from timestepper.runs.run import Run
from timestepper.runs.train import Process


def drive(arguments: list[str], signal_after: int | None = None, vanish_after: int | None = None) -> int | None:
    """Do what ``timestepper train`` does; the step at which it stopped, None where it came to the end.

    After so many updates and evaluated batches, send SIGTERM to this process (answered when the next one is done), or
    vanish without a word.
    """
    _, recipe, *changes, _, run = arguments
    signals, folder = Signals().install(), RunDirectory(Path(run))
    try:
        steps = Process(Run(load(recipe, changes), "run", folder.path), folder, signals).steps()
        for number, step in enumerate(steps):  # the first says only that all is ready
            if number == signal_after:
                os.kill(os.getpid(), signal.SIGTERM)
            if number == vanish_after:
                return step
    except Interrupted as stop:
        return stop.step
    finally:
        folder.close()
        signals.restore()
    return None
