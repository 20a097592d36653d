"""The attached network: the base network's parts, its controllers, and calls with effective parameters."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import cast

import torch
from torch import Tensor, nn

from timestepper import equations, fused, reparam
from timestepper.adapters import Stage
from timestepper.call import call, one_at_a_time, refuse_tracing
from timestepper.controllers import Controller, ControllerSpec, StageShape
from timestepper.controllers.base import at_least_float32, by_stage, in_one
from timestepper.errors import MismatchError, SideEntranceError, UnsupportedSiteError, WrappedModelError

# Methods of the base that run nothing and change nothing; timm's optimisers ask for them.
_HARMLESS = {"group_matcher", "no_weight_decay", "get_classifier"}


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
    """A network with controllers on it. Built by :func:`timestepper.attach`.

    Its children, parameters and buffers are those of the base network, under their original names, plus
    ``controllers``. A call computes the effective parameters and runs the untouched base network with them; nothing is
    left on any module between two calls, so deepcopy, EMA, pickling, DDP and ``state_dict`` work as for any module.
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
        with one_at_a_time(self._base):
            if not torch.compiler.is_compiling():
                refuse_tracing(args, kwargs)
                self.refuse_changes()
            return call(self._base, self.effective_parameters(), args, kwargs)

    def effective_parameters(self) -> dict[str, Tensor]:
        """The parameters that the base network runs with, where they differ from the trained ones."""
        with one_at_a_time(self._base), no_autocast(self):
            names = [entry.parameter for site in self._entries for entry in site]
            parameters = {name: attrgetter(name)(self._base) for name in names}  # traced faster than get_parameter
            _refuse_changed(self._base, parameters)
            steps = self._steps()
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

    def refuse_changes(self) -> None:
        """What was done to the network since attach, and would go unnoticed."""
        if self.__dict__.get("_is_replica"):
            raise WrappedModelError("torch's DataParallel copies no step sizes; use DistributedDataParallel instead")
        replaced = [name for name, part in self._base._modules.items() if self._modules.get(name) is not part]
        if replaced:
            raise MismatchError(
                f"{', '.join(replaced)} replaced on {type(self._base).__name__} itself: the attached network would "
                f"neither train nor save it; replace it there (net.{replaced[-1]} = …), or attach afterwards"
            )

    def train(self, mode: bool = True):
        self._base.train(mode)  # which may have a way of its own: batch norms that stay frozen, say
        for name, part in self._modules.items():
            if part is not None and name not in self._base._modules:
                part.train(mode)
        self.training = mode
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
        if callable(value) and not isinstance(value, type) and name not in _HARMLESS:
            raise SideEntranceError(
                f"{type(base).__name__}.{name} would run without step sizes; call the attached network itself, use "
                f"timestepper.fold(net).{name} (timestepper.detach(net).{name} is without), or, if it changes the "
                "network, call it before you attach"
            )
        return value

    def extra_repr(self) -> str:
        return f"{type(self._base).__name__} with controller={self.stepping.controller}"


def _places(stages: tuple[Stage, ...], entries: list[tuple[reparam.Entry, ...]]) -> list[int]:
    begins = accumulate((stage.channels for stage in stages for _ in stage.sites), initial=0)
    return [begin for begin, site in zip(begins, entries, strict=False) for _ in site]


def no_autocast(net: nn.Module) -> AbstractContextManager:
    """Off on the network's device; on the meta device, where nothing is computed, there is none to switch off."""
    kind = next(net.parameters()).device.type
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def _refuse_changed(base: nn.Module, parameters: dict[str, Tensor]) -> None:
    """Last layers that were sharded or are computed from other parameters since attach."""
    for name, value in parameters.items():
        if type(value) is nn.Parameter:  # as nearly always
            continue
        if type(value).__name__ == "DTensor":
            raise WrappedModelError(
                f"{name} is sharded (fully_shard), and its step size needs the whole of it; shard the attached network "
                "without its parts, and fold one that holds its full state dict"
            )
        path, _, last = name.rpartition(".")
        layer = attrgetter(path)(base)
        if last not in layer._parameters and last not in layer._buffers:
            raise UnsupportedSiteError(
                f"{name} is computed from other parameters since attach (pruned, normalised), which takes its step "
                "size away; do that to timestepper.fold(net)"
            )
