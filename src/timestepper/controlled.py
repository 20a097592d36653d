"""Step sizes from weights: what the controllers of one network read, and what they give."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor, nn

from timestepper import equations, fused
from timestepper.adapters import Site, Stage
from timestepper.controllers import Controller, ControllerSpec, StageShape
from timestepper.controllers.base import at_least_float32, by_stage, in_one
from timestepper.errors import StepSizeError
from timestepper.stepped import CONTROLLERS


class Controllers(nn.ModuleDict):
    """One controller for every stage. As a child of the network it is no layer: what goes in comes out.

    ``fused`` chooses the kernels: None where they can run, True or False to insist.
    """

    fused: bool | None = None
    dt0: Tensor  # the first step sizes, where there is a start to count from

    def forward(self, *inputs):
        return inputs[0] if len(inputs) == 1 else inputs


@dataclass(frozen=True)
class Stepping:
    """What is attached, as a user asked for it."""

    stages: tuple[Stage, ...]
    controller: ControllerSpec
    reduction: int | None
    descriptor: str
    descriptor_gradient: bool
    start: float | None = None  # where step sizes begin; None: where their controller does
    chosen: bool = False  # whether these are not all sites, but those that a user chose

    def shape(self, stage: Stage) -> StageShape:
        length = stage.descriptor + (self.descriptor == "visible")
        return StageShape(len(stage.sites), stage.channels, length, self.reduction or stage.reduction)


class Controlled:
    """A network and its controllers, which are its child."""

    def __init__(self, root: nn.Module, stepping: Stepping):
        self.root = root
        self.stepping = stepping
        self._convs: dict[str, tuple[dict[str, nn.Module | None], str]] = {}  # siblings and name of each layer read

    @torch.no_grad()
    def begin(self) -> None:
        """Look at the first step sizes, which a start is counted from: the branch runs with start * dt / dt0."""
        with self.no_autocast():
            for stage, controller in self.controlled():
                found, wanted = controller(self.descriptors(stage, controller)), (len(stage.sites), stage.channels)
                if tuple(found.shape) != wanted:
                    raise StepSizeError(
                        f"{type(controller).__name__} gives step sizes of shape {tuple(found.shape)} for {stage.name}, "
                        f"which has {wanted[0]} sites of {wanted[1]} channels; return {wanted}"
                    )
            if self.stepping.start is not None:
                first = self._from_controllers(self.controlled())
                if not first.is_meta and not (first.isfinite() & (first != 0)).all():
                    raise StepSizeError(
                        "start= divides by the first step sizes, and one is 0 or not a number; leave start= out"
                    )
                self.controllers.register_buffer("dt0", first.clone())

    def step_sizes(self) -> dict[str, Tensor]:
        """By stage, (L, C)."""
        with self.no_autocast():
            found = self.by_stage(self._flat(self.controlled()))
        return {stage.name: dt for stage, dt in zip(self.stepping.stages, found, strict=True)}

    @property
    def controllers(self) -> Controllers:
        return cast(Controllers, self.root._modules[CONTROLLERS])

    def controlled(self) -> list[tuple[Stage, Controller]]:
        """Each stage with the controller that it owns."""
        return list(zip(self.stepping.stages, cast(Iterable[Controller], self.controllers.values()), strict=True))

    def by_stage(self, flat: Tensor) -> list[Tensor]:
        """Step sizes of each stage, (L, C)."""
        return by_stage(flat, [(len(stage.sites), stage.channels) for stage in self.stepping.stages])

    def _flat(self, controlled: list[tuple[Stage, Controller]]) -> Tensor:
        """Step sizes of all sites of some stages, one after the other."""
        found = self._from_controllers(controlled)
        if self.stepping.start is None:
            return found
        names = [stage.name for stage in self.stepping.stages]
        whole = dict(zip(names, self.by_stage(self.controllers.dt0), strict=True))
        first = in_one(whole[stage.name] for stage, _ in controlled)
        return found / first * self.stepping.start  # exactly the start, as long as found is first

    def _from_controllers(self, controlled: list[tuple[Stage, Controller]]) -> Tensor:
        choice = self.controllers.fused
        if choice or (choice is None and self.stepping.controller.reads_weights):
            stages, controllers = zip(*controlled, strict=True)
            weights = [weight for stage in stages for site in stage.sites for weight in self._weights(site)]
            if fused.fits(weights, controllers, insist=choice is True):
                described = fused.describe(weights, gradient=self.stepping.descriptor_gradient)
                if self.stepping.descriptor == "visible":
                    rows = by_stage(described, [(len(stage.sites), stage.descriptor) for stage in stages])
                    described = in_one(map(equations.visible_descriptor, rows))
                return fused.step_sizes(described, controllers)
        return in_one(controller(self.descriptors(stage, controller)) for stage, controller in controlled)

    def descriptors(self, stage: Stage, controller: Controller) -> Tensor:
        """What describes a stage, (L, D) in float32 or better; empty where the controller reads no weights."""
        if not controller.reads_weights:
            return at_least_float32(self._weight(stage.sites[0].convs[0]).new_empty(0))
        weights = map(self._weights, stage.sites)
        rows = [torch.cat([_gathered(equations.descriptor(at_least_float32(w))) for w in site]) for site in weights]
        stacked = torch.stack(rows)
        if self.stepping.descriptor == "visible":
            stacked = equations.visible_descriptor(stacked)
        return stacked if self.stepping.descriptor_gradient else stacked.detach()

    def _weights(self, site: Site) -> list[Tensor]:
        """What describes a site, each with its outputs first and its inputs second."""
        found = [self._weight(conv) for conv in site.convs]
        return [_outputs_first(w, dims) for w, dims in zip(found, site.means, strict=True)] if site.means else found

    def _weight(self, conv: str) -> Tensor:
        """Not get_parameter: a parametrised weight, or that of a LoRA layer, is none."""
        if torch.compiler.is_compiling():
            return attrgetter(f"{conv}.weight")(self.root)
        siblings, name = self._convs[conv]  # in a tenth of the time
        layer = cast(nn.Module, siblings[name])
        weight = layer._parameters.get("weight")
        return cast(Tensor, layer.weight) if weight is None else weight

    def no_autocast(self) -> AbstractContextManager:
        """Off on the network's device; on the meta device, where nothing is computed, there is none to switch off."""
        kind = self._weight(self.stepping.stages[0].sites[0].convs[0]).device.type
        on = kind != "meta" and torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if on else nullcontext()


def _outputs_first(weight: Tensor, averaged: tuple[int, ...]) -> Tensor:
    """Transposed, where inputs come first; a depthwise kernel, which has one input, averaged over space."""
    if averaged == (0,):
        return weight.transpose(0, 1)
    return at_least_float32(weight).flatten(2).mean(2) if len(averaged) > 1 else weight


def is_sharded(tensor: Tensor) -> bool:
    """By name: torch.distributed takes long to load."""
    return type(tensor).__name__ == "DTensor"


def _gathered(described: Tensor) -> Tensor:
    """The whole of a descriptor whose weight is sharded; every rank adds its part to its gradient."""
    if not is_sharded(described):
        return described
    from torch.distributed.tensor import Partial

    return described.full_tensor(grad_placements=[Partial("avg")] * described.device_mesh.ndim)  # type: ignore[attr-defined]
