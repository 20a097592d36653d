"""timestepper inspect: what would be attached to a network."""

from dataclasses import replace
from typing import Annotated

import typer

from timestepper import names
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
    from timestepper.recipe.load import import_kind
    from timestepper.sites import create_model, input_pixels, is_known

    import_kind(controller)
    pixels = input_size or input_pixels(model)
    net = create_model(model, original_stride=original_stride)
    discovered = None if is_known(net) else timestepper.discover(net, torch.randn(2, 3, pixels, pixels))
    net = timestepper.attach(net, controller, reduction=reduction, sites=discovered)
    found = timestepper.summary(net, (3, pixels, pixels))
    if json:
        more = {} if discovered is None else {"discovered": discovered.to_dict()}
        tell(json_format.dumps({"name": model, **found.to_dict(), **more}, indent=2))
        return
    skipped = found.skipped if discovered is None else ()  # what was discovered says why itself
    tell(replace(found, model=model, skipped=skipped))
    tell(f"input       {pixels}x{pixels}")
    if discovered is not None:
        tell(discovered)
