"""timestepper stability: the paper's theory, computed for a network or a run."""

from pathlib import Path
from typing import Annotated, Any

import typer

from timestepper.terminal import tell

FIGURE_1 = "figure1"
_HELP = "LIBRARY/MODEL, a run directory, or figure1 for the paper's Figure 1"


def stability(
    context: typer.Context,
    net_or_run: Annotated[str, typer.Argument(help=_HELP, metavar="NET_OR_RUN")],
    controller: Annotated[str, typer.Option(help="for a model name: lstm, two_fc, …, fixed(0.01) or none")] = "none",
    weights: Annotated[Path | None, typer.Option(help="for a model name: plain weights, a .safetensors file")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="data set, such as digits or cifar10; a run brings its own; without one, inputs are random"),
    ] = None,
    root: Annotated[Path | None, typer.Option(help="where the data set is")] = None,
    input_size: Annotated[
        int | None, typer.Option(help="width of random inputs; by default 32 for cifar/, else 224", min=1)
    ] = None,
    samples: Annotated[int, typer.Option(help="images for growth and gradients", min=1)] = 8,
    bound: Annotated[bool, typer.Option(help="Proposition 1; leave it out for layers without a known norm")] = True,
    theory: Annotated[
        bool, typer.Option(help="figures of single blocks; without them, noise, attacks and corruptions are left")
    ] = True,
    noise: Annotated[bool, typer.Option("--noise", help="error over Gaussian noise")] = False,
    attacks: Annotated[bool, typer.Option("--attacks", help="error under FGSM and PGD")] = False,
    corruptions: Annotated[bool, typer.Option("--corruptions", help="error on six common corruptions")] = False,
    images: Annotated[
        int | None, typer.Option(help="test images for noise, attacks and corruptions; by default all", min=1)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="draw bound, growth and step sizes over depth")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Bound, measured growth, Euler condition, gradient shares and robustness of a network, with its step sizes.

    Under torchrun the processes share the test images; the figures are those of one process.
    """
    from timestepper.cli import stability_subject as subjects
    from timestepper.cli import stability_tables as tables
    from timestepper.stability import plot_depth

    kinds = [kind for kind in subjects.ROBUSTNESS if context.params[kind]]
    _check(context, net_or_run, kinds)
    found: dict[str, Any] | None
    if net_or_run == FIGURE_1:
        found, show = subjects.figure_1(), tables.show_solutions
    else:
        subject = subjects.load(net_or_run, controller, weights, data, root)
        asked: dict[str, Any] = {"pixels": input_size, "bound": bound, "kinds": kinds, "images": images}
        found, show = subjects.examine(subject, device, samples=samples if theory else 0, **asked), tables.show
    if found is None:  # the first process of torchrun shows all
        return
    if json:
        tell(tables.as_json(found))
    else:
        show(found)
    if plot is not None:  # last: a file that cannot be written costs no figures
        plot_depth(plot, found, net_or_run)


def _check(context: typer.Context, net_or_run: str, kinds: list[str]) -> None:
    """Refuse options that say nothing together, as they were written on the command line."""
    from timestepper.errors import StabilityError

    given = {}
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            off = parameter.secondary_opts and context.params[name] is False
            given[name] = (parameter.secondary_opts if off else parameter.opts)[0]
    if net_or_run == FIGURE_1:
        if unused := [option for name, option in given.items() if name != "json"]:
            raise StabilityError(
                f"{FIGURE_1} has no network and no data; leave {', '.join(unused)} out (timestepper report draws it)"
            )
    elif "plot" in given and not context.params["theory"]:
        raise StabilityError("--plot draws what --no-theory leaves out; give one of them")
    elif not (context.params["theory"] or kinds):
        raise StabilityError("--no-theory leaves nothing to compute; add --noise, --attacks or --corruptions")
    elif Path(net_or_run).is_dir():
        own = [given[name] for name in ("controller", "weights", "data", "root", "input_size") if name in given]
        if own:
            raise StabilityError(f"{net_or_run} is a run with its own network and data; leave {', '.join(own)} out")
