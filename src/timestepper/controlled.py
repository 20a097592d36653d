"""Step sizes from weights: what the controllers of one network read, and what they give."""

import warnings
from collections.abc import Container, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from timestepper import equations, kernels, reparam
from timestepper.controllers import Controller, ControllerSpec, StageShape
from timestepper.controllers.base import at_least_float32, by_stage, in_one
from timestepper.controllers.gain import log_gain
from timestepper.controllers.together import Controllers
from timestepper.errors import MismatchError, StepSizeError, WrappedModelError
from timestepper.looking import gathered, held_still, step_sizes_of
from timestepper.root import CONTROLLERS
from timestepper.sites import Site, Stage

Convs = dict[str, tuple[dict[str, nn.Module | None], str]]  # by path: the siblings of a layer, and its name among them


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
    normed: bool = True  # whether the network has norms

    def shape(self, stage: Stage) -> StageShape:
        length = stage.descriptor + (self.descriptor == "visible")
        reduction = self.reduction or stage.reduction
        all_sites = sum(len(stage.sites) for stage in self.stages)
        return StageShape(len(stage.sites), stage.channels, length, reduction, self.normed, all_sites)


class End(NamedTuple):
    """What a branch ends in."""

    layer: str
    name: str
    offset: float
    scales: bool  # whether it is one number per channel
    norm: bool


Reading = tuple[tuple[str, tuple[int, ...]], ...]  # the layers that describe a site, and what each is averaged over


class Read(NamedTuple):
    """A stage in plain names and numbers."""

    begin: int  # of its step sizes, among those of all stages
    channels: int
    descriptor: int
    sites: tuple[Reading, ...]
    ends: tuple[End, ...] = ()  # of each site


class Controlled:
    """A network and its controllers, which are its child.

    Compiled code gets the network as an argument and the rest from :meth:`_reads`, as constants: torch.compile checks
    every path to a layer again at every call, and constants never.
    """

    def __init__(self, root: nn.Module, stepping: Stepping):
        self.root = root
        self.stepping = stepping
        sizes = [len(stage.sites) * stage.channels for stage in stepping.stages]
        self.reads = tuple(
            Read(sum(sizes[:n]), stage.channels, stage.descriptor, tuple(map(_reading, stage.sites)))
            for n, stage in enumerate(stepping.stages)
        )
        paths = [path for stage in self.reads for site in stage.sites for path, _ in site]
        homes = {path: root.get_submodule(path.rpartition(".")[0]) for path in paths}
        self._convs: Convs = {path: (home._modules, path.rpartition(".")[2]) for path, home in homes.items()}

    @torch.compiler.assume_constant_result
    def _reads(self) -> tuple[Read, ...]:
        return self.reads

    @torch.no_grad()
    def begin(self) -> None:
        """Check the first step sizes. With a start they are kept as dt0: branches run with start * dt / dt0."""
        with held_still(self.root), self.no_autocast(self.root):
            for (stage, controller), read in zip(self.controlled(), self.reads, strict=True):
                described = self.descriptors(self.root, read, controller)
                found = step_sizes_of(controller, described)
                wanted = len(read.sites), read.channels
                if not isinstance(found, Tensor) or tuple(found.shape) != wanted:
                    given = f"step sizes of shape {tuple(found.shape)}" if isinstance(found, Tensor) else "no tensor"
                    raise StepSizeError(
                        f"{type(controller).__name__} gives {given} for {stage.name}, which has {wanted[0]} sites of "
                        f"{wanted[1]} channels; return {wanted}"
                    )
                if _has_numbers(described, found) and described.isfinite().all() and not found.isfinite().all():
                    raise StepSizeError(
                        f"{type(controller).__name__} gives step sizes that are NaN or infinite for {stage.name}, from "
                        "weights that are not; mend its forward or its options"
                    )
            if self.stepping.start is not None:
                first = self._from_controllers(self.root, self._all())
                if not first.is_meta and not (first.isfinite() & (first != 0)).all():
                    raise StepSizeError(
                        "start= divides by the first step sizes, and one is 0 or not a number; leave start= out"
                    )
                self.controllers.register_buffer("dt0", first.clone())

    def warn_if_start_moves(self, loaded: Container[str]) -> None:
        """Where weights that the first step sizes were computed from are loaded, and no controllers with them."""
        reads = self.stepping.start is not None and self.stepping.controller.controller.reads_weights
        weights = any(f"{path}.weight" in loaded for path in self._convs)
        if reads and weights and not any(f"{CONTROLLERS}.{name}" in loaded for name in self.controllers.state_dict()):
            warnings.warn(
                "weights were loaded after attach(start=…), which has computed the first step sizes from others: the "
                "network no longer begins with its own function; load first, then attach",
                stacklevel=3,  # of who calls load_state_dict
            )

    def step_sizes(self) -> dict[str, Tensor]:
        """By stage, (L, C)."""
        with held_still(self.root), self.no_autocast(self.root):
            found = self.by_stage(self._flat(self.root, self._all()))
        return {stage.name: dt for stage, dt in zip(self.stepping.stages, found, strict=True)}

    @property
    def controllers(self) -> Controllers:
        return cast(Controllers, self.root._modules[CONTROLLERS])

    def controlled(self) -> list[tuple[Stage, Controller]]:
        """Each stage with the controller that it owns."""
        return list(zip(self.stepping.stages, cast(Iterable[Controller], self.controllers.values()), strict=True))

    def by_stage(self, flat: Tensor) -> list[Tensor]:
        """Step sizes of each stage, (L, C)."""
        return by_stage(flat, [(len(read.sites), read.channels) for read in self._reads()])

    def _all(self) -> list[int]:
        return list(range(len(self._reads())))

    def _flat(self, root: nn.Module, stages: list[int]) -> Tensor:
        """Step sizes of all sites of some stages, one after the other."""
        found = self._from_controllers(root, stages)
        if self.stepping.start is None:
            return found
        whole = self.by_stage(root._modules[CONTROLLERS].dt0)  # type: ignore[union-attr, arg-type]
        first = in_one(whole[stage] for stage in stages)
        return found / first * self.stepping.start  # where found equals first, exactly the start

    def _from_controllers(self, root: nn.Module, stages: list[int]) -> Tensor:
        owned = cast(Controllers, root._modules[CONTROLLERS])
        every, reads = [*owned._modules.values()], [self._reads()[stage] for stage in stages]
        controllers = cast(list[Controller], [every[stage] for stage in stages])
        kind = self.stepping.controller.controller
        if not kind.reads_gain and (owned.fused or (owned.fused is None and kind.reads_weights)):
            weights = [weight for read in reads for own in self._described(root, read) for weight in own]
            of = kernels.fits(weights, controllers, insist=owned.fused is True)
            if of is not None:
                described = kernels.describe(weights, self.stepping.descriptor_gradient, of)
                if self.stepping.descriptor == "visible":
                    rows = by_stage(described, [(len(read.sites), read.descriptor) for read in reads])
                    described = in_one(map(equations.visible_descriptor, rows))
                return kernels.step_sizes(described, controllers, of)
        pairs = zip(reads, controllers, strict=True)
        return in_one(step_sizes_of(controller, self.descriptors(root, read, controller)) for read, controller in pairs)

    def descriptors(self, root: nn.Module, read: Read, controller: Controller) -> Tensor:
        """What describes a stage, (L, D) in float32 or better; empty where the controller reads no weights."""
        if not controller.reads_weights:
            return at_least_float32(self._weight(root, read.sites[0][0][0]).new_empty(0))
        if controller.reads_gain:
            pairs = [(self._weights(root, site), end) for site, end in zip(read.sites, read.ends, strict=True)]
            rows = [gathered(log_gain(own, self._scale(root, end), end.norm)) for own, end in pairs]
        else:
            weights = self._described(root, read)
            rows = [torch.cat([gathered(equations.descriptor(at_least_float32(w))) for w in own]) for own in weights]
        stacked = torch.stack(rows)
        if self.stepping.descriptor == "visible" and not controller.reads_gain:
            stacked = equations.visible_descriptor(stacked)
        return stacked if self.stepping.descriptor_gradient else stacked.detach()

    def _scale(self, root: nn.Module, end: End) -> Tensor | None:
        """The weight per channel that a branch ends in, as it is trained; None where it ends in a matrix."""
        if not end.scales:
            return None
        weight = reparam.trained(attrgetter(end.layer)(root), end.name)
        return weight + end.offset if end.offset and weight is not None else weight

    def _weights(self, root: nn.Module, site: Reading) -> list[Tensor]:
        """What describes a site, each with its outputs first and its inputs second."""
        return [_outputs_first(self._weight(root, path), averaged) for path, averaged in site]

    def _described(self, root: nn.Module, read: Read) -> list[list[Tensor]]:
        """What describes each site of a stage; it must be as many numbers as the controller was made for."""
        weights = [self._weights(root, site) for site in read.sites]
        if torch.jit.is_tracing():  # sizes are tensors then
            return weights
        for site, own in zip(read.sites, weights, strict=True):
            found = sum(weight.numel() // weight.shape[1] for weight in own)
            if found != read.descriptor:
                raise MismatchError(
                    f"{', '.join(path for path, _ in site)} have other shapes than at attach: their controller reads "
                    f"{read.descriptor} numbers, and now {found}; call timestepper.detach(net) and attach again"
                )
        return weights

    def _weight(self, root: nn.Module, path: str) -> Tensor:
        """Not get_parameter: a parametrised weight, or that of a LoRA layer, is none."""
        if torch.compiler.is_compiling():
            return attrgetter(f"{path}.weight")(root)
        siblings, name = self._convs[path]  # ten times as fast
        layer = cast(nn.Module, siblings[name])
        weight = layer._parameters.get("weight")
        if weight is None:
            reparam.refuse_computed(path, layer)
        return cast(Tensor, layer.weight) if weight is None else weight

    def no_autocast(self, root: nn.Module) -> AbstractContextManager:
        """Off on the network's device; on the meta device, where nothing is computed, there is none to switch off."""
        first = self._reads()[0].sites[0][0][0]
        kind = self._weight(root, first).device.type
        if kind == "meta" and hasattr(root.get_submodule(first), "_hf_hook"):
            raise WrappedModelError(
                f"{first}.weight is offloaded and comes back only when its layer runs (accelerate), too late for the "
                "controller that reads it; offload timestepper.fold(net)"
            )
        on = kind != "meta" and torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if on else nullcontext()


def _reading(site: Site) -> Reading:
    return tuple(zip(site.convs, site.means or [(1,)] * len(site.convs), strict=True))


def _outputs_first(weight: Tensor, averaged: tuple[int, ...]) -> Tensor:
    """Transposed, where inputs come first; a depthwise kernel, which has one input, averaged over space."""
    if averaged == (0,):
        return weight.transpose(0, 1)
    return at_least_float32(weight).flatten(2).mean(2) if len(averaged) > 1 else weight


def _has_numbers(*tensors: Tensor) -> bool:
    """Whether they can be looked at: on the meta device, and where torch only pretends, there are shapes alone."""
    return not any(tensor.is_meta or isinstance(tensor, FakeTensor) for tensor in tensors)
