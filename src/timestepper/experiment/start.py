"""The first second of a run, before torch is imported: signals, lock, and whether there is anything left to do."""

import signal
from pathlib import Path
from typing import Any

from timestepper import records, torchrun
from timestepper.engine.rundir import RECIPE, RunDirectory, read_status
from timestepper.engine.signals import Signals
from timestepper.errors import RunDirectoryError, TimestepperError
from timestepper.experiment.load import differences, loads
from timestepper.experiment.schema import Recipe
from timestepper.files import make_folder
from timestepper.terminal import tell


def start(recipe: Recipe, *, name: str, run_dir: Path | None, results: Path | None = None, **options: Any) -> int:
    """Train a recipe in its run directory and print the summary; the exit code."""
    path = run_dir or Path("runs") / name
    signals = Signals().wait() if torchrun.launched() else Signals().install()
    folder: RunDirectory | None = None
    try:
        _refuse_hopeless_restart(path)
        if results is not None:
            make_folder(results)
        if is_finished(recipe, path):
            if results is not None:
                records.publish(path, results)
            tell(f"{path} is finished; nothing to do (timestepper evaluate {path} shows its errors)")
            return 0
        if torchrun.rank() == 0:
            folder = RunDirectory(path)
        return _run(recipe, name, folder, signals, {"results": results, **options})
    finally:
        if folder is not None:
            folder.close()
        signals.restore()


def _run(recipe: Recipe, name: str, folder: RunDirectory | None, signals: Signals, options: dict[str, Any]) -> int:
    from timestepper.engine.loop import Interrupted
    from timestepper.experiment.finish import summary_lines
    from timestepper.experiment.run import Request, train

    try:
        figures = train(Request(recipe, name, folder, signals, **options))
    except Interrupted as stop:
        if folder is not None:
            tell(
                f"stopped by {signal.Signals(stop.signal).name} at step {stop.step}, which is saved in {folder.path}; "
                "the same command goes on from there",
                error=True,
            )
        return 128 + stop.signal
    if folder is not None:
        tell("\n".join([*summary_lines(figures), f"run           {folder.path}"]))
    return 0


def is_finished(recipe: Recipe, path: Path) -> bool:
    """Whether a run directory holds this very recipe, trained to its end, and its record."""
    if (read_status(path) or {}).get("state") != "finished" or not (path / records.RECORD).exists():
        return False
    try:
        return not differences(loads((path / RECIPE).read_text(), str(path / RECIPE)), recipe)
    except (OSError, UnicodeDecodeError, TimestepperError):
        return False


def _refuse_hopeless_restart(path: Path) -> None:
    """torchrun starts a failed job again; a run that failed on its own account would only fail again."""
    status = read_status(path)
    if torchrun.restarts() and status and status.get("hopeless"):
        raise RunDirectoryError(f"not restarted, because {path} failed by itself: {status.get('error', 'see above')}")
