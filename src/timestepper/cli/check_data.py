"""timestepper check-data: every bad file of a data set."""

from pathlib import Path
from typing import Annotated

import typer


def check_data(
    name: Annotated[str, typer.Argument(help="digits, cifar10, cifar100, imagenet or folder")],
    root: Annotated[Path | None, typer.Option(help="folder of the data set; by default the usual places")] = None,
) -> None:
    """Open NAME, read every file of it and list the bad ones."""
    from timestepper import data
    from timestepper.errors import DataError

    bad = data.check(name, root)
    for path, reason in bad:
        print(f"{path}: {reason}")
    if bad:
        raise DataError(f"{name}: {len(bad)} bad files; replace or remove them")
    print(f"{name}: all files are good")
