"""timestepper fold: the plain network of a run, step sizes baked in."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell


def fold(
    run: Annotated[Path, typer.Argument(help="run directory")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="safetensors file to write; its sha256 goes beside it")
    ],
) -> None:
    """Fold the newest sound checkpoint of RUN into a plain network's weights."""
    from timestepper import saving
    from timestepper.errors import RunDirectoryError
    from timestepper.files import check_file, prepare_file
    from timestepper.runs.finish import WEIGHTS
    from timestepper.runs.load import restore

    check_file(output)
    trained = restore(run, blind=True)
    if trained.recipe.controller.kind == "none":
        raise RunDirectoryError(
            f"{run} trained a plain network, which has nothing to fold; when it is finished, its weights are in "
            f"{run / WEIGHTS}"
        )
    prepare_file(output)  # not earlier: a run that cannot be folded leaves no folder behind
    saving.save_folded(trained.model, output)
    tell(f"{output}: plain {trained.recipe.model.name} of {trained.path}")
