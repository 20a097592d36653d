"""timestepper list: the runs in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper import terminal


def list(folder: Annotated[Path, typer.Argument(help="folder that holds run directories")] = Path("runs")) -> None:
    """Show state, step and test error of every run below FOLDER."""
    from rich.table import Column, Table

    from timestepper.engine.rundir import STATUS, read_status
    from timestepper.errors import RunDirectoryError

    others = (Column(name, no_wrap=True) for name in ("state", "step", "test error", "last sign of life"))
    table = Table(Column("run", overflow="fold"), *others)  # a narrow terminal folds the names and cuts nothing off
    for path in sorted(folder.rglob(STATUS)):
        status = read_status(path.parent) or {"state": "unreadable"}
        error = f"{status['test_error']:.2%}" if "test_error" in status else ""
        step = f"{status.get('step', '?')}/{status.get('steps', '?')}"
        table.add_row(str(path.parent.relative_to(folder)), status["state"], step, error, status.get("time", ""))
    if not table.row_count:
        raise RunDirectoryError(f"no runs below {folder}; timestepper train puts them into runs/")
    terminal.console().print(table)
