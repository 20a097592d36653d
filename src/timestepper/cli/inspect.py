"""timestepper inspect: what would be attached to a network."""

from typing import Annotated

import typer

from timestepper import names, terminal
from timestepper.terminal import tell


def inspect(
    model: Annotated[str, typer.Argument(help="LIBRARY/MODEL: timm/resnet50, torchvision/resnet18, cifar/resnet56, …")],
    controller: Annotated[str, typer.Option(help=names.known())] = "lstm",
    reduction: Annotated[int | None, typer.Option(help="the paper's r; by default 4, and 8 for bottlenecks")] = None,
    original_stride: Annotated[
        bool, typer.Option(help="stride in the first 1x1 convolution of a bottleneck, as in the paper")
    ] = False,
    input_size: Annotated[int | None, typer.Option(min=1, help="pixels; by default 32 for cifar/, else 224")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show stages, sites, step sizes, parameters and GFLOPs of a network with controllers."""
    import json as json_format

    import torch

    import timestepper
    from timestepper.sites import create_model, input_pixels, is_known

    pixels = input_size or input_pixels(model)
    net = create_model(model, original_stride=original_stride)
    discovered = None if is_known(net) else timestepper.discover(net, torch.randn(2, 3, pixels, pixels))
    net = timestepper.attach(net, controller, reduction=reduction, sites=discovered)
    found = timestepper.summary(net, (3, pixels, pixels))
    if json:
        more = {} if discovered is None else {"discovered": discovered.to_dict()}
        tell(json_format.dumps({"name": model, **found.to_dict(), **more}, indent=2))
        return

    from rich.table import Table

    table = Table(title=f"{model} with controller {found.controller}", title_justify="left")
    for column in ("stage", "site", "channels", "descriptor", "hidden", "step size", "T"):
        table.add_column(column, justify="left" if column in ("stage", "site") else "right")
    for stage in found.stages:
        for depth, (site, dt) in enumerate(zip(stage.sites, stage.step_sizes, strict=True)):
            sizes = (str(stage.channels), str(stage.descriptor), str(stage.hidden))
            time = f"{stage.evolution_time:.3f}" if depth == len(stage.sites) - 1 else ""
            table.add_row(stage.name if depth == 0 else "", site, *sizes, f"{dt:.3f}", time)
        table.add_section()
    console = terminal.console()
    console.print(table)
    millions = [n / 1e6 for n in (found.parameters_train, found.parameters_with_steps, found.parameters_folded)]
    console.print("parameters  {:.2f}M in training, {:.2f}M with step sizes kept, {:.2f}M folded".format(*millions))
    console.print(
        f"GFLOPs      {found.gflops:.2f} at {pixels}x{pixels}; "
        f"the controller adds {found.gflops_controller:.3f} to a training step, whatever the batch"
    )
    console.print(f"evolution   T = {sum(stage.evolution_time for stage in found.stages):.3f} in all")
    if discovered is not None:
        console.print(str(discovered), markup=False, soft_wrap=True)
    elif found.skipped:
        console.print(f"skipped     {', '.join(found.skipped)} (no adapter knows them)")
