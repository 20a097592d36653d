"""timestepper train: train a recipe, or go on where its run directory stands."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell


def train(
    recipe: Annotated[
        str, typer.Argument(help="a TOML file or a shipped recipe such as smoke/digits")
    ] = "smoke/digits",
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value …", show_default=False)] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="by default runs/RECIPE, or runs/RECIPE/OVERRIDES; a run that is there is continued"),
    ] = None,
    override: Annotated[bool, typer.Option("--override", help="continue although the recipe has changed")] = False,
    workers: Annotated[int | None, typer.Option(help="processes that decode image files")] = None,
    dist_timeout: Annotated[
        float, typer.Option(min=1, help="seconds after which a silent process counts as lost")
    ] = 600.0,
    results: Annotated[Path | None, typer.Option(help="also write the record of the finished run here")] = None,
    fields: Annotated[bool, typer.Option("--fields", help="list all that a recipe may say, and stop")] = False,
) -> None:
    """Train RECIPE. Stop it at any time; the same command goes on from there, on a CPU to the same bits."""
    from timestepper.recipe.load import describe_fields, load, short_name
    from timestepper.runs.run import Run, default_folder
    from timestepper.runs.start import train as start

    if fields:
        tell("\n".join(describe_fields()))
        return
    wanted = load(recipe, [*(overrides or []), *([f"data.workers={workers}"] if workers is not None else [])])
    path = run_dir or default_folder(recipe, wanted, override)
    raise typer.Exit(start(Run(wanted, short_name(recipe), path, override=override, results=results), dist_timeout))
