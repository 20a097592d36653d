"""timestepper train, list, evaluate and fold: a run, from its recipe to the plain network that comes out of it."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper import terminal
from timestepper.terminal import tell

RunArgument = Annotated[Path, typer.Argument(help="run directory")]


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
    from timestepper.runs.start import widen_device_queue

    if fields:
        tell("\n".join(describe_fields()))
        return
    wanted = load(recipe, [*(overrides or []), *([f"data.workers={workers}"] if workers is not None else [])])
    widen_device_queue([wanted])
    path = run_dir or default_folder(recipe, wanted, override)
    raise typer.Exit(start(Run(wanted, short_name(recipe), path, override=override, results=results), dist_timeout))


def list_runs(folder: Annotated[Path, typer.Argument(help="folder that holds run directories")] = Path("runs")) -> None:
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


def evaluate(
    run: RunArgument,
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

    if torchrun.launched():
        raise RecipeError("evaluate runs in one process; start it without torchrun")
    place = choose_device(device)
    trained = restore(run)
    figures = finish.evaluate(trained, build.runtime(trained.recipe, place, terminal.warn))
    if json:
        tell(json_format.dumps({"checkpoint": str(trained.path), **figures}, indent=2))
        return
    tell(f"checkpoint    {trained.path}, after {trained.state['epochs_done']} of {trained.recipe.run.epochs} epochs")
    tell("\n".join(finish.summary_lines(figures)))


def fold(
    run: RunArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="safetensors file to write; its sha256 goes beside it")
    ],
) -> None:
    """Fold the newest sound checkpoint of RUN into a plain network's weights."""
    from timestepper import saving
    from timestepper.errors import RunDirectoryError
    from timestepper.files import check_file
    from timestepper.runs.finish import WEIGHTS
    from timestepper.runs.load import restore

    check_file(output)
    trained = restore(run, blind=True)
    if trained.recipe.controller.kind == "none":
        raise RunDirectoryError(
            f"{run} trained a plain network, which has nothing to fold; when it is finished, its weights are in "
            f"{run / WEIGHTS}"
        )
    saving.save_folded(trained.model, output)
    tell(f"{output}: plain {trained.recipe.model.name} of {trained.path}")
