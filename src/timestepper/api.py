"""Attach, fold, detach and look inside: the method on a whole network."""

import copy
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from timestepper import equations, fused, reparam
from timestepper.adapters import Stage, find_stages
from timestepper.controllers import Controller, ControllerSpec, StageShape, parse
from timestepper.controllers.base import at_least_float32, by_stage, in_one
from timestepper.errors import (
    ActivationCheckpointingError,
    AlreadyAttachedError,
    NonFiniteError,
    NoSitesError,
    NotAttachedError,
    SideEntranceError,
    StepSizeError,
    UnknownNameError,
    WrappedModelError,
)

DESCRIPTORS = ("mean", "visible")  # how the controller is shown the weights; the paper's is the first


@dataclass(frozen=True)
class Stepping:
    """What is attached, as a user asked for it."""

    stages: tuple[Stage, ...]
    controller: ControllerSpec
    reduction: int | None
    descriptor: str
    descriptor_gradient: bool

    def shape(self, stage: Stage) -> StageShape:
        length = stage.descriptor + (self.descriptor == "visible")
        return StageShape(len(stage.sites), stage.channels, length, self.reduction or stage.reduction)


class Attached(nn.Module):
    """A network with controllers on it. Built by :func:`attach`.

    Its children, parameters and buffers are those of the base network, under their original names, plus
    ``controllers``. A call computes the effective parameters and runs the untouched base network with them; nothing is
    stored on any module between two calls, so deepcopy, EMA, pickling, DDP and ``state_dict`` work as for any module.
    """

    stepping: Stepping
    fused: bool | None  # kernels for the controllers: None where they can run, True or False to insist
    _entries: list[tuple[reparam.Entry, ...]]
    _places: list[int]  # of each entry: where its step sizes begin among those of all sites

    def __init__(self, base: nn.Module, stepping: Stepping):
        super().__init__()
        # The base is kept out of the module tree: its parts are registered here directly, which gives the state dict
        # the base's own keys. Parameter and buffer dictionaries are shared, so that neither side can go stale.
        self.__dict__["_base"] = base
        self.__dict__.update(
            _parameters=base._parameters,
            _buffers=base._buffers,
            _non_persistent_buffers_set=base._non_persistent_buffers_set,
        )
        self._modules.update(base._modules)  # not named_children, which leaves out a part's second name
        self.controllers = nn.ModuleDict(
            {
                stage.name.replace(".", "_"): stepping.controller.build(stepping.shape(stage))
                for stage in stepping.stages
            }
        )
        entries = [reparam.entries(base, site.last, site.gate) for stage in stepping.stages for site in stage.sites]
        reparam.refuse_shared(base, entries)
        # Past __setattr__: a base network may have settings of these names, which stay as they are.
        self.__dict__.update(stepping=stepping, _entries=entries, _places=_places(stepping.stages, entries), fused=None)
        self.training = base.training

    def forward(self, *args, **kwargs):
        if getattr(self._base, "grad_checkpointing", False):
            raise ActivationCheckpointingError(_NO_CHECKPOINTING)
        # Not tied: of a block that stands in two places, torch would leave the effective weights behind in the network.
        return functional_call(self._base, self.effective_parameters(), args, kwargs, tie_weights=False)

    def effective_parameters(self) -> dict[str, Tensor]:
        """The parameters that the base network runs with, where they differ from the trained ones."""
        with _no_autocast(self):
            steps = self._steps()
            names = [entry.parameter for site in self._entries for entry in site]
            parameters = {name: attrgetter(name)(self._base) for name in names}  # traced faster than get_parameter
            if self.fused is not False and fused.scales([*parameters.values()], steps, insist=self.fused is True):
                scaled = fused.scale([*parameters.values()], steps, self._places)
                return dict(zip(names, scaled, strict=True))
            step_sizes = [row for stage in self._by_stage(steps) for row in stage.unbind()]
            return reparam.effective(parameters, self._entries, step_sizes)

    def controlled(self) -> list[tuple[Stage, Controller]]:
        """Each stage with the controller that it owns."""
        return list(zip(self.stepping.stages, cast(Iterable[Controller], self.controllers.values()), strict=True))

    def _by_stage(self, steps: Tensor) -> list[Tensor]:
        """Step sizes of each stage, (L, C)."""
        return by_stage(steps, [(len(stage.sites), stage.channels) for stage in self.stepping.stages])

    def _steps(self) -> Tensor:
        """Step sizes of all sites, one after the other."""
        if self.fused is not False:
            stages, controllers = zip(*self.controlled(), strict=True)
            convs = [conv for stage in stages for site in stage.sites for conv in site.convs]
            weights = [attrgetter(f"{conv}.weight")(self._base) for conv in convs]
            if fused.fits(weights, controllers, insist=self.fused is True):
                described = fused.describe(weights, gradient=self.stepping.descriptor_gradient)
                if self.stepping.descriptor == "visible":
                    rows = by_stage(described, [(len(stage.sites), stage.descriptor) for stage in stages])
                    described = in_one(map(equations.visible_descriptor, rows))
                return fused.step_sizes(described, controllers)
        return in_one(controller(self.descriptors(stage, controller)) for stage, controller in self.controlled())

    def descriptors(self, stage: Stage, controller: Controller) -> Tensor:
        """What describes a stage, (L, D) in float32 or better; empty where the controller reads no weights."""
        # Not get_parameter: a parametrised weight, or one that a functional_call around this one put in, is none.
        weights = [[attrgetter(f"{conv}.weight")(self._base) for conv in site.convs] for site in stage.sites]
        if not controller.reads_weights:
            return at_least_float32(weights[0][0].new_empty(0))
        rows = [torch.cat([equations.descriptor(at_least_float32(w)) for w in site]) for site in weights]
        stacked = torch.stack(rows)
        if self.stepping.descriptor == "visible":
            stacked = equations.visible_descriptor(stacked)
        return stacked if self.stepping.descriptor_gradient else stacked.detach()

    def train(self, mode: bool = True):
        super().train(mode)
        self._base.training = mode
        return self

    def __setattr__(self, name: str, value) -> None:
        """A replaced part (a new head, say) is replaced in the base network too, and its settings are set there."""
        base = self.__dict__.get("_base")
        if base is not None and name in base.__dict__ and name not in self.__dict__:
            setattr(base, name, value)  # timm's drop_rate, say: reading gives the base's, so writing must reach it
            return
        super().__setattr__(name, value)
        if base is not None and name in base._modules:
            setattr(base, name, value)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """The other way to replace a part: ``SyncBatchNorm.convert_sync_batchnorm`` takes it."""
        super().add_module(name, module)
        if name in self._base._modules:
            self._base._modules[name] = module

    def __getattr__(self, name: str):
        """Plain attributes come from the base network; its methods would run without step sizes and are refused."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            base = self.__dict__.get("_base")
            if base is None or not hasattr(base, name):
                raise
        value = getattr(base, name)
        if callable(value) and not isinstance(value, type):
            raise SideEntranceError(
                f"{type(base).__name__}.{name} would run without step sizes; call the attached network itself, "
                f"use timestepper.fold(net).{name}, or timestepper.detach(net).{name} if you want it without"
            )
        return value

    def extra_repr(self) -> str:
        return f"{type(self._base).__name__} with controller={self.stepping.controller}"


def attach(
    model: nn.Module,
    controller: str | ControllerSpec = "lstm",
    *,
    reduction: int | None = None,
    descriptor: str = "mean",
    descriptor_gradient: bool = True,
) -> Attached:
    """Put a controller on every stage of a residual network and return the network to train.

    ``controller`` is ``"lstm"`` (the paper's), ``"two_fc"``, ``"independent"`` or ``"fixed(0.01)"``. ``reduction`` is
    the paper's r (default 4 for basic blocks, 8 for bottlenecks). ``descriptor="visible"`` shows the controller its
    weights normalised, with their scale, instead of as they are. ``descriptor_gradient=False`` stops the gradient of
    the step sizes at the convolution weights that the controller reads. The model itself is not changed.
    """
    _refuse_wrapped(model)
    spec = parse(controller)
    if descriptor not in DESCRIPTORS:
        raise UnknownNameError(f"unknown descriptor {descriptor!r}; known are {', '.join(DESCRIPTORS)}")
    if reduction is not None and reduction < 1:
        raise StepSizeError(f"reduction must be at least 1, not {reduction}")
    if {"controllers", "stepping"} & set(dict(model.named_children())):
        raise AlreadyAttachedError(f"{type(model).__name__} has a part named 'controllers' or 'stepping'; rename it")
    stages = tuple(find_stages(model))
    net = Attached(model, Stepping(stages, spec, reduction, descriptor, descriptor_gradient))
    reference = attrgetter(f"{stages[0].sites[0].convs[0]}.weight")(model)
    net.controllers.to(device=reference.device, dtype=torch.promote_types(reference.dtype, torch.float32))
    return net


@torch.no_grad()
def fold(net: nn.Module) -> nn.Module:
    """A plain network with the step sizes in its weights: the base's class and keys, the attached network's logits.

    A copy; ``net`` stays as it is. Works in float32 or better and casts once, whatever the network's precision.
    """
    attached = find_attached(net)
    plain = copy.deepcopy(attached._base)
    effective = attached.effective_parameters()
    for name, value in effective.items():
        plain.get_parameter(name).copy_(value)
    for name, value in plain.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise NonFiniteError(f"cannot fold: {name} holds NaN or infinity; go back to a sound checkpoint")
    _say_rounding({value.dtype for value in effective.values()})
    return plain


def detach(net: nn.Module) -> nn.Module:
    """The base network as it is, without its step sizes: the very module that was attached to, nothing left behind."""
    return find_attached(net)._base


@torch.no_grad()
def step_sizes(net: nn.Module) -> dict[str, Tensor]:
    """Step sizes by stage, each (depth, channels)."""
    attached = find_attached(net)
    with _no_autocast(attached):
        found = attached._by_stage(attached._steps())
    return {stage.name: dt for stage, dt in zip(attached.stepping.stages, found, strict=True)}


def evolution_time(net: nn.Module) -> dict[str, float]:
    """Evolution time by stage: step sizes summed over depth, averaged over channels. A plain stage has its depth."""
    return {name: equations.evolution_time(dt).mean().item() for name, dt in step_sizes(net).items()}


def find_attached(net: nn.Module) -> Attached:
    """The attached network inside DDP, AveragedModel or torch.compile wrappers."""
    inner = net
    while not isinstance(inner, Attached):
        wrapped = (
            inner._modules.get("module", inner._modules.get("_orig_mod")) if isinstance(inner, nn.Module) else None
        )
        if wrapped is None:
            raise NotAttachedError(f"{type(net).__name__} has no controllers; call timestepper.attach first")
        inner = wrapped
    return inner


def _places(stages: tuple[Stage, ...], entries: list[tuple[reparam.Entry, ...]]) -> list[int]:
    begins = accumulate((stage.channels for stage in stages for _ in stage.sites), initial=0)
    return [begin for begin, site in zip(begins, entries, strict=False) for _ in site]


_NO_CHECKPOINTING = (
    "activation checkpointing is on, and it recomputes blocks outside the call, without their step sizes; "
    "switch it off (timm: model.set_grad_checkpointing(False)) to train with controllers"
)


def _no_autocast(net: nn.Module) -> AbstractContextManager:
    """Off on the network's device; on the meta device, where nothing is computed, there is none to switch off."""
    kind = next(net.parameters()).device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def _refuse_wrapped(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise NoSitesError(
            f"attach takes a network, not {model!r}; timestepper.adapters.create_model makes one by name"
        )
    for path, module in model.named_modules():
        if isinstance(module, Attached):
            raise AlreadyAttachedError(
                f"{path or type(model).__name__} has controllers already ({module.stepping.controller}); "
                "call timestepper.detach(net) first to attach others"
            )
        kind = type(module).__name__
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel) or kind in _WRAPPERS:
            raise WrappedModelError(f"{path or 'the model'} is wrapped in {kind}; attach first, then wrap the result")
        if module._compiled_call_impl is not None:
            raise WrappedModelError(f"{path or kind} is compiled; attach first, then compile the result")
        if getattr(module, "grad_checkpointing", False) is True:
            raise ActivationCheckpointingError(_NO_CHECKPOINTING)


_WRAPPERS = {"OptimizedModule", "FullyShardedDataParallel", "AveragedModel"}


def _say_rounding(dtypes: set[torch.dtype]) -> None:
    """A network in half precision loses bits in the one cast; say how many."""
    for dtype in (dtype for dtype in dtypes if dtype.itemsize < 4):
        warnings.warn(
            f"folded in float32 and cast once to {str(dtype).removeprefix('torch.')}: "
            f"a weight moves by at most {torch.finfo(dtype).eps / 2:.1e} of itself",
            stacklevel=3,
        )
