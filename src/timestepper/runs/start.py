"""The first second of a run, before torch is imported: signals, lock, and whether there is anything left to do."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from timestepper import torchrun
from timestepper.engine.rundir import RunDirectory, read_status
from timestepper.engine.signals import Signals
from timestepper.errors import RunDirectoryError
from timestepper.files import make_folder
from timestepper.recipe.schema import Recipe
from timestepper.runs.run import Run
from timestepper.terminal import tell


def train(run: Run, dist_timeout: float = 600.0) -> int:
    """Train a run to its end in its folder and print the summary; the exit code."""
    torchrun.check()
    signals = Signals().wait() if torchrun.launched() else Signals().install(leave=True)
    folder: RunDirectory | None = None
    try:
        _refuse_hopeless_restart(run.path)
        if run.results is not None:
            make_folder(run.results)
        if run.is_finished:
            if run.images:
                from timestepper.runs.build import dataset
                from timestepper.runs.resume import refuse_other_images

                refuse_other_images(run, dataset)
            run.publish()
            tell(f"{run.path} is finished; nothing to do (timestepper evaluate {run.path} shows its errors)")
            return 0
        if torchrun.rank() == 0:
            folder = RunDirectory(run.path)
        return _train(run, folder, signals, dist_timeout)
    finally:
        if folder is not None:
            folder.close()
        signals.restore()


def widen_device_queue(recipes: Sequence[Recipe], jobs: int = 1) -> None:
    """Let as many streams as runs work at a time reach the device side by side; by default CUDA folds them into eight.

    The JPEG decoder has fourteen of its own: folded, those that share a queue with the training wait behind every step
    that waits there, and a step and its images take turns. No more than needed: processes that share a GPU through MPS
    also share its queues. CUDA reads it once, when torch starts it.
    """
    decoding = any(recipe.data.decode != "cpu" for recipe in recipes)
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32" if decoding else str(min(max(8, jobs), 32)))


def _train(run: Run, folder: RunDirectory | None, signals: Signals, dist_timeout: float) -> int:
    from timestepper.engine.loop import Interrupted
    from timestepper.runs.finish import summary_lines
    from timestepper.runs.train import Process

    process = Process(run, folder, signals, dist_timeout=dist_timeout)
    try:
        for _ in process.steps():
            pass
    except Interrupted as stop:
        if folder is not None:
            tell(
                f"stopped by {signal.Signals(stop.signal).name} at step {stop.step}, which is saved in {folder.path}; "
                "the same command goes on from there",
                error=True,
            )
        return 128 + stop.signal
    if folder is not None:
        tell("\n".join([*summary_lines(process.final), f"run           {folder.path}"]))
    return 0


def _refuse_hopeless_restart(path: Path) -> None:
    """torchrun starts a failed job again; a run that failed on its own account would only fail again."""
    status = read_status(path)
    if torchrun.restarts() and status and status.get("hopeless"):
        raise RunDirectoryError(f"not restarted, because {path} failed by itself: {status.get('error', 'see above')}")
