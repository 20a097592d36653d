"""timestepper verify: is an exported file whole?"""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell


def verify(file: Annotated[Path, typer.Argument(help="safetensors file with its .sha256 beside it")]) -> None:
    """Compare FILE with the sha256 beside it."""
    from timestepper.saving import verify as check

    tell(f"{file}: sha256 {check(file)} is right")
