"""timestepper check-data and verify: whether files are whole."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper import terminal
from timestepper.terminal import on_one_line, tell


def check_data(
    name: Annotated[str, typer.Argument(help="digits, cifar10, cifar100, imagenet or folder")],
    root: Annotated[Path | None, typer.Option(help="folder of the data set; by default the usual places")] = None,
) -> None:
    """Open NAME, read every file of it and list the bad ones."""
    from rich.progress import Progress

    from timestepper import data
    from timestepper.errors import DataError

    console = terminal.console(stderr=True)
    with Progress(transient=True, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("files", total=None)
        bad = data.check(name, root, lambda done, total: bar.update(task, completed=done, total=total))
    for path, reason in bad:
        tell(on_one_line(f"{path}: {reason}"))
    if bad:
        raise DataError(f"{name}: {len(bad)} bad {'file' if len(bad) == 1 else 'files'}; replace or remove what is bad")
    tell(f"{name}: all files are good")


def verify(file: Annotated[Path, typer.Argument(help="safetensors file with its .sha256 beside it")]) -> None:
    """Compare FILE with the sha256 beside it."""
    from timestepper.tensors import verify as check

    tell(f"{file}: sha256 {check(file)} is right")
