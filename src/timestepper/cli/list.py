"""timestepper list: the runs in a folder."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper import terminal


def list(folder: Annotated[Path, typer.Argument(help="folder that holds run directories")] = Path("runs")) -> None:
    """Show state, step and test error of every run below FOLDER."""
    from rich.markup import escape
    from rich.table import Column, Table

    from timestepper.engine.rundir import RECIPE, STATUS, read_status
    from timestepper.errors import RunDirectoryError

    runs = sorted({path.parent for name in (STATUS, RECIPE) for path in folder.rglob(name)})
    others = (Column(name, no_wrap=True) for name in ("state", "step", "test error", "last sign of life"))
    table = Table(Column("run", overflow="fold", max_width=30), *others)
    for run in runs:
        name = terminal.printable(run.relative_to(folder))
        status = read_status(run) or {"state": "unreadable" if (run / STATUS).exists() else "no status"}
        error = f"{status['test_error']:.2%}" if "test_error" in status else ""
        step = f"{status.get('step', '?')}/{status.get('steps', '?')}"
        table.add_row(*map(escape, (name, status["state"], step, error, status.get("time", ""))))
    if not table.row_count:
        raise RunDirectoryError(f"no runs below {folder}; timestepper train puts them into runs/")
    console = terminal.console()
    whole = console.measure(table, options=console.options.update(max_width=500)).maximum
    console.width = max(console.width, whole)  # a narrower terminal breaks the lines, and nothing is cut off
    console.print(table)
