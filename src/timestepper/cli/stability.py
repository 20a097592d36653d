"""timestepper stability: the paper's theory, computed for a network or a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from timestepper.terminal import tell

FIGURE_1 = "figure1"
BATCH = 250  # images at a time in the robustness figures; changes no result
TIMEOUT = 1800.0  # seconds that a process of torchrun waits for the others


def stability(
    context: typer.Context,
    net_or_run: Annotated[
        str,
        typer.Argument(
            help="LIBRARY/MODEL, a run directory, or figure1 for the paper's Figure 1", metavar="NET_OR_RUN"
        ),
    ],
    controller: Annotated[str, typer.Option(help="for a model name: lstm, two_fc, …, fixed(0.01) or none")] = "none",
    weights: Annotated[Path | None, typer.Option(help="for a model name: plain weights, a .safetensors file")] = None,
    data: Annotated[str | None, typer.Option(help="digits, cifar10, …; a run has its own; else random inputs")] = None,
    root: Annotated[Path | None, typer.Option(help="where the data set is")] = None,
    input_size: Annotated[
        int | None, typer.Option(help="pixels of random inputs; 32 for cifar/, else 224", min=1)
    ] = None,
    samples: Annotated[int, typer.Option(help="images for growth and gradients", min=1)] = 8,
    bound: Annotated[bool, typer.Option(help="Proposition 1; leave it out for layers without a known norm")] = True,
    theory: Annotated[
        bool, typer.Option(help="all that looks at blocks; leave it out for the next three alone")
    ] = True,
    noise: Annotated[bool, typer.Option("--noise", help="error over Gaussian noise")] = False,
    attacks: Annotated[bool, typer.Option("--attacks", help="error under FGSM and PGD")] = False,
    corruptions: Annotated[bool, typer.Option("--corruptions", help="error on six common corruptions")] = False,
    images: Annotated[int | None, typer.Option(help="test images for these three; by default all", min=1)] = None,
    plot: Annotated[Path | None, typer.Option(help="draw bound, growth and step sizes over depth")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Bound, measured growth, Euler condition, gradient shares and robustness of a network, with its step sizes.

    Under torchrun the processes share the test images; the figures are those of one process.
    """
    import json as json_format

    from timestepper import torchrun
    from timestepper.adapters import input_pixels
    from timestepper.cli.stability_tables import show
    from timestepper.engine import distributed
    from timestepper.engine.runtime import choose_device
    from timestepper.errors import StabilityError
    from timestepper.stability import analyse, plot_depth

    given = _given(context)
    if net_or_run == FIGURE_1:
        if unused := [option for name, option in given.items() if name not in ("plot", "json")]:
            raise StabilityError(f"{FIGURE_1} has no network and no data; leave {', '.join(unused)} out")
        _figure_1(plot, json)
        return
    if plot is not None and not theory:
        raise StabilityError("--plot draws what --no-theory leaves out; give one of them")
    if not (theory or noise or attacks or corruptions):
        raise StabilityError("--no-theory leaves nothing to compute; add --noise, --attacks or --corruptions")
    if Path(net_or_run).is_dir():
        if own := [given[name] for name in ("controller", "weights", "data", "root", "input_size") if name in given]:
            raise StabilityError(f"{net_or_run} is a run with its own network and data; leave {', '.join(own)} out")
        subject = load_run(Path(net_or_run))
    else:
        subject = load_model(net_or_run, controller, weights, data, root)
    place = choose_device(device, torchrun.local_rank())
    subject.net.to(place)
    found: dict[str, Any] = {"name": net_or_run}
    if theory:
        pixels = input_size or input_pixels(net_or_run)
        found |= analyse(subject.net, *subject.first(samples, pixels, place), bound=bound)
    group = distributed.start(place, TIMEOUT)
    try:
        found |= _robustness(subject, images, group, noise=noise, attacks=attacks, corruptions=corruptions)
    finally:
        distributed.stop()
    if group.rank > 0:
        return
    if json:
        tell(json_format.dumps(_finite(found), indent=2))
    else:
        show(found)
    if plot is not None:  # last: a file that cannot be written costs no figures
        plot_depth(plot, found, net_or_run)


def _given(context: typer.Context) -> dict[str, str]:
    """The options on the command line, by parameter, as they were written there."""
    found = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.param_type_name == "option" and source is not None and source.name == "COMMANDLINE":
            off = parameter.secondary_opts and context.params[parameter.name or ""] is False
            found[parameter.name or ""] = (parameter.secondary_opts if off else parameter.opts)[0]
    return found


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON has no words for."""
    from math import isfinite

    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value


@dataclass
class Subject:
    """What is looked at: a network and the test images that belong to it, if any."""

    net: Any
    images: Any = None

    def batches(self, count: int | None, batch: int, group: Any):
        """This process's share of the first ``count`` test images, normalised; a label of -1 marks an empty slot."""
        from itertools import islice

        from timestepper import data

        count = min(count or len(self.images), len(self.images))
        batch = group.world * -(-min(batch, count) // group.world)
        loader = data.loader(
            self.images,
            batch_size=batch,
            seed=0,
            training=False,
            rank=group.rank,
            world=group.world,
            device=group.device,
        )
        for step, (images, labels) in enumerate(islice(loader.epoch(0), -(-count // batch))):
            labels = labels.clone()
            labels[max(0, count - _share(group).indices(step, len(labels)).start) :] = -1
            yield images, labels

    def first(self, samples: int, pixels: int, device: Any) -> tuple[Any, Any]:
        """A few inputs and their labels; random ones, without labels, where there is no data set."""
        import torch

        from timestepper.engine.distributed import Group

        if self.images is not None:
            return next(self.batches(samples, samples, Group(device=device)))
        channels = next(p for p in self.net.parameters() if p.dim() == 4).shape[1]
        noise = torch.randn(samples, channels, pixels, pixels, generator=torch.Generator().manual_seed(0))
        return noise.to(device), None


def load_run(path: Path) -> Subject:
    """The network and the test images of a run directory, with the weights of its newest sound checkpoint."""
    from timestepper.experiment.finish import restore

    trained = restore(path)
    return Subject(trained.model, trained.data.test)


def load_model(name: str, controller: str, weights: Path | None, data: str | None, root: Path | None) -> Subject:
    """A network by name, with random or saved weights, and the test images of a data set."""
    import torch

    import timestepper
    from timestepper.adapters import create_model
    from timestepper.data import open_dataset
    from timestepper.errors import UnknownNameError
    from timestepper.saving import load_folded

    images = open_dataset(data, root).test if data else None
    options: dict[str, Any] = (
        {"num_classes": images.classes, "in_chans": images.input_shape[0]} if images is not None else {}
    )
    torch.manual_seed(0)
    try:
        net = create_model(name, **options)
    except UnknownNameError as error:
        raise UnknownNameError(f"{error}; there is no folder of that name either") from None
    if weights is not None:
        net = load_folded(net, weights)
    return Subject(net if controller == "none" else timestepper.attach(net, controller), images)


def _share(group: Any):
    """This process's part of the test images, and how the sums of all processes are made."""
    from timestepper.stability.robustness import Share

    return Share(group.rank, group.world, group.sum)


def _robustness(subject: Subject, count: int | None, group: Any, *, noise: bool, attacks: bool, corruptions: bool):
    """The figures that were asked for, as plain data."""
    from dataclasses import asdict

    from timestepper.errors import StabilityError
    from timestepper.stability import Pixels, robustness

    if not (noise or attacks or corruptions):
        return {}
    if subject.images is None:
        raise StabilityError("noise, attacks and corruptions need test images; give --data (digits needs no download)")
    scale, share = Pixels(subject.images.mean, subject.images.std), _share(group)
    found: dict[str, Any] = {}
    if noise:
        scores = robustness.noise(subject.net, subject.batches(count, BATCH, group), share=share)
        found["noise"] = [{"level": level, "draws": [asdict(s) for s in each]} for level, each in scores.items()]
    if attacks:
        attacked = robustness.attacks(subject.net, subject.batches(count, BATCH, group), scale, share=share)
        found["attacks"] = [
            {"attack": name, "epsilon": epsilon, **asdict(score)}
            for name, by_epsilon in attacked.items()
            for epsilon, score in by_epsilon.items()
        ]
    if corruptions:
        corrupted = robustness.corrupted(subject.net, subject.batches(count, BATCH, group), scale, share=share)
        found["corruptions"] = [
            {"corruption": name, "severity": severity, **asdict(score)}
            for name, each in corrupted.items()
            for severity, score in enumerate(each, 1)
        ]
    return found


def _figure_1(plot: Path | None, json: bool) -> None:
    import json as json_format

    from timestepper.stability import figure_1, plot_figure_1
    from timestepper.stability.ode import decayed

    solutions = figure_1()
    rows = {
        name: {"steps": solution.steps, "rejected": solution.rejected, "error": solution.error(decayed)}
        for name, solution in solutions.items()
    }
    if plot is not None:
        plot_figure_1(plot, solutions)
    if json:
        tell(json_format.dumps(rows, indent=2))
        return
    for name, row in rows.items():
        tell(f"{name:18s} {row['steps']:4d} steps, {row['rejected']} rejected, largest error {row['error']:.3g}")
