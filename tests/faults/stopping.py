"""A run driven step by step in one process, stopped by a real signal after an exact number of them."""

import os
import signal
from pathlib import Path

from timestepper.engine.loop import Interrupted
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.experiment.load import load
from timestepper.experiment.run import Request, Session


def drive(arguments: list[str], signal_after: int | None = None, vanish_after: int | None = None) -> int | None:
    """Do what ``timestepper train`` does; the step at which it stopped, None where it came to the end.

    After so many updates and evaluated batches, send SIGTERM to this process (answered when the next one is done), or
    vanish without a word.
    """
    _, recipe, *changes, _, run = arguments
    signals, folder = Signals().install(), RunDirectory(Path(run))
    try:
        session = Session(Request(load(recipe, changes), "run", folder, signals))
        with session.told():
            session.join()
            if signal_after == 0:
                os.kill(os.getpid(), signal.SIGTERM)
            for number, step in enumerate(session.training().steps(), start=1):
                if number == signal_after:
                    os.kill(os.getpid(), signal.SIGTERM)
                if number == vanish_after:
                    return step
            session.finish()
    except Interrupted as stop:
        return stop.step
    finally:
        folder.close()
        signals.restore()
    return None
