"""timestepper evaluate: the test error of a run."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell


def evaluate(
    run: Annotated[Path, typer.Argument(help="run directory")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Evaluate the newest sound checkpoint of RUN, and its folded twin where it has controllers."""
    import json as json_format

    from timestepper import torchrun
    from timestepper.engine.runtime import choose_device
    from timestepper.errors import RecipeError
    from timestepper.runs import build, finish
    from timestepper.runs.load import restore
    from timestepper.terminal import warn

    if torchrun.launched():
        raise RecipeError("evaluate runs in one process; start it without torchrun")
    place = choose_device(device)
    trained = restore(run)
    figures = finish.evaluate(trained, build.runtime(trained.recipe, place, warn))
    if json:
        tell(json_format.dumps({"checkpoint": str(trained.path), **figures}, indent=2))
        return
    tell(f"checkpoint    {trained.path}, after {trained.state['epochs_done']} of {trained.recipe.run.epochs} epochs")
    tell("\n".join(finish.summary_lines(figures)))
