"""What is attached to what: stages, sites, parameters and multiply-adds of a network, as plain data."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from timestepper.api import detach, find_steps, is_attached, step_sizes
from timestepper.equations import evolution_time
from timestepper.errors import MismatchError, UnknownNameError, first_line
from timestepper.links import in_shards
from timestepper.looking import held_still, step_sizes_of
from timestepper.sites import skipped_blocks
from timestepper.sites.example import calls_of
from timestepper.sites.twin import Call, left_alone, without_hooks
from timestepper.steps import Steps

# The CPU's attention, which torch 2.11 does not count; each head of a query has its key and value, shared or not.
_UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(
        q, (*q[:2], *k[2:]), (*q[:2], *v[2:])
    )
}


@dataclass(frozen=True)
class StageSummary:
    """One stage and the step sizes of its sites, averaged over channels."""

    name: str
    sites: tuple[str, ...]
    channels: int
    descriptor: int
    hidden: int
    step_sizes: tuple[float, ...]
    evolution_time: float


@dataclass(frozen=True)
class Summary:
    """One attached network. Parameters: in training, with the step sizes kept beside the weights, and folded."""

    model: str
    controller: str
    stages: tuple[StageSummary, ...]
    skipped: tuple[str, ...]
    parameters_train: int
    parameters_with_steps: int
    parameters_folded: int
    gflops: float | None  # None: not counted
    gflops_controller: float

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        rows = [("stage", "site", "channels", "descriptor", "hidden", "step size", "T")]
        for stage in self.stages:
            sizes = (str(stage.channels), str(stage.descriptor), str(stage.hidden))
            last = len(stage.sites) - 1
            for depth, (site, dt) in enumerate(zip(stage.sites, stage.step_sizes, strict=True)):
                time = f"{stage.evolution_time:.3f}" if depth == last else ""
                rows.append((stage.name if depth == 0 else "", site, *sizes, f"{dt:.3f}", time))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        left, right = widths[:2], widths[2:]
        table = ["  ".join([*map(str.ljust, row, left), *map(str.rjust, row[2:], right)]).rstrip() for row in rows]
        millions = [n / 1e6 for n in (self.parameters_train, self.parameters_with_steps, self.parameters_folded)]
        gflops = "not counted (give input_size or example=)" if self.gflops is None else f"{self.gflops:.2f}"
        lines = [
            f"{self.model} with controller {self.controller}",
            *table,
            "parameters  {:.2f}M in training, {:.2f}M with step sizes kept, {:.2f}M folded".format(*millions),
            f"GFLOPs      {gflops}; the controller adds {self.gflops_controller:.3f} to a step of any batch",
            f"evolution   T = {sum(stage.evolution_time for stage in self.stages):.3f} in all",
        ]
        return "\n".join([*lines, *([f"skipped     {', '.join(self.skipped)}"] if self.skipped else [])])


def summary(net: nn.Module, input_size: tuple[int, int, int] | None = None, *, example: Any = None) -> Summary:
    """Look inside an attached network: its stages and sites, step sizes, parameters and multiply-adds.

    On the meta device everything is counted as elsewhere, and the step sizes are NaN. Under FSDP2 every rank has to
    call, and the multiply-adds of the network are NaN, because they are counted on a copy.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.
        input_size: (channels, height, width) of one image, for the multiply-adds. By default an image as timm's and
            transformers' networks say that they take it, 8 tokens for their language models, and (3, 224, 224) for
            others; where a network does not run on that, its multiply-adds are None.
        example: as in ``attach``, for networks that take no image: the multiply-adds are those of one call with it.

    Returns:
        A table: ``print`` it, or take its fields.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        MismatchError: the network does not run on the ``input_size`` or ``example`` that is given.
    """
    found = find_steps(net)
    train, controllers = count_parameters(found.root), count_parameters(found.controllers)
    kept = sum(stage.channels * len(stage.sites) for stage in found.stepping.stages)
    return Summary(
        model=type(found.root).__name__,
        controller=str(found.stepping.controller),
        stages=tuple(_stages(found)),
        skipped=tuple(skipped_blocks(found.root, list(found.stepping.stages))),
        parameters_train=train,
        parameters_with_steps=train - controllers + kept,
        parameters_folded=train - controllers,
        gflops=_gflops(found.root, input_size, example),
        gflops_controller=controller_multiply_adds(found) / 1e9,
    )


@torch.no_grad()
def descriptor_influence(net: nn.Module, shown: str = "zeros") -> dict[str, float]:
    """How far any step size moves when the controller is shown something else than the weights.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile; under FSDP2 every rank has to call.
        shown: ``zeros``: near zero, the controller does not read the weights; its step sizes are constants that it has
            learned. ``mean``, for every block the mean of its stage: near zero, it does not tell the blocks apart.

    Returns:
        By stage, the largest change of a step size.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        UnknownNameError: of another word than these two.
    """
    replacement = {"zeros": torch.zeros_like, "mean": lambda rows: rows.mean(0, keepdim=True).expand_as(rows)}
    if shown not in replacement:
        raise UnknownNameError(f"unknown replacement {shown!r}; a controller can be shown zeros or mean")
    found = find_steps(net)
    moved = {}
    with held_still(found.root), found.no_autocast(found.root):  # as step_sizes are computed: in float32 or better
        for (stage, controller), read in zip(found.controlled(), found.reads, strict=True):
            described = found.descriptors(found.root, read, controller)
            other = step_sizes_of(controller, replacement[shown](described))
            moved[stage.name] = _known((step_sizes_of(controller, described) - other).abs().max()).item()
    return moved


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _gflops(model: nn.Module, input_size: tuple[int, int, int] | None, example: Any) -> float | None:
    if in_shards(model):
        return math.nan
    try:
        return multiply_adds(model, input_size, example) / 1e9
    except MismatchError:
        if input_size is None and example is None:  # the user has named no input, and ours does not fit
            return None
        raise


def multiply_adds(model: nn.Module, input_size: tuple[int, int, int] | None = None, example: Any = None) -> int:
    """Multiply-adds of convolutions and matrix products for one image or example, counted on shapes alone."""
    if input_size is not None and example is not None:
        raise MismatchError("input_size and example= are two inputs to count on; give one of them")
    given = f"one image of input_size {input_size}"
    try:
        for call in _calls(model, input_size, example):
            given = given if input_size is not None else f"an example of {call}"
            for on_shapes in (True, False):  # masks and caches make some networks look at numbers
                with contextlib.suppress(Exception):
                    return _counted(model, call, on_shapes)
        return _counted(model, call, on_shapes)  # once more, for what it says
    except Exception as error:  # of a foreign network, which can raise anything
        raise MismatchError(
            f"the multiply-adds of {type(model).__name__} cannot be counted on {given}: {type(error).__name__}: "
            f"{first_line(error)}; give the (channels, height, width) that it takes, or example=, what its forward "
            "takes, or call timestepper.step_sizes, which needs no image"
        ) from error


def _calls(model: nn.Module, input_size: tuple[int, int, int] | None, example: Any) -> list[Call]:
    """What to count on: as given, else one image or text as the network tells of its input, or an image of 224."""
    if input_size is not None:
        return [Call((torch.zeros(1, *input_size),), {})]
    if example is not None:
        return calls_of(model, example)
    found = []
    with contextlib.suppress(Exception):  # a network may tell anything
        told = calls_of(model)[-1]
        found = [Call(*tree_map(lambda value: value[:1], (told.args, told.kwargs)))]
    return [*found, Call((torch.zeros(1, 3, 224, 224),), {})]


def _counted(model: nn.Module, call: Call, on_shapes: bool) -> int:
    with left_alone(), torch.no_grad():
        shadow = without_hooks(model)
        shadow = (shadow.to("meta") if on_shapes else shadow).float().eval()  # as the image is
        shadow = detach(shadow) if is_attached(shadow) else shadow  # the network's own, as it was
        args, options = call.arguments(shadow, torch.float32)
        with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
            shadow(*args, **options)
    return counter.get_total_flops() // 2


def controller_multiply_adds(found: Steps) -> int:
    """What the controllers add to one training step: their matrix products, and one pass to average what they read."""
    with held_still(found.root):
        averaged = sum(
            attrgetter(f"{conv}.weight")(found.root).numel()
            for stage, controller in found.controlled()
            if controller.reads_weights
            for site in stage.sites
            for conv in site.convs
        )
    return averaged + sum(controller.multiply_adds() for _, controller in found.controlled())


def _known(values: Tensor) -> Tensor:
    """The values, NaN on the meta device: there are shapes there, and no numbers."""
    return torch.full(values.shape, torch.nan, device="cpu") if values.is_meta else values


def _stages(found: Steps) -> Iterator[StageSummary]:
    for (stage, controller), sizes in zip(found.controlled(), step_sizes(found.root).values(), strict=True):
        dt = _known(sizes)
        yield StageSummary(
            name=stage.name,
            sites=tuple(site.path for site in stage.sites),
            channels=stage.channels,
            descriptor=controller.shape.descriptor,
            hidden=controller.shape.hidden,
            step_sizes=tuple(dt.mean(1).tolist()),
            evolution_time=evolution_time(dt).mean().item(),
        )
