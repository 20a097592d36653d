"""Attach, fold, detach and look inside: the method on a whole network."""

import copy
import warnings
from operator import attrgetter

import torch
from torch import Tensor, nn

from timestepper import equations
from timestepper.adapters import find_stages
from timestepper.attached import Attached, Stepping, no_autocast
from timestepper.call import NO_CHECKPOINTING, one_at_a_time
from timestepper.controllers import ControllerSpec, parse
from timestepper.errors import (
    ActivationCheckpointingError,
    AlreadyAttachedError,
    NonFiniteError,
    NoSitesError,
    NotAttachedError,
    StepSizeError,
    UnknownNameError,
    WrappedModelError,
)

DESCRIPTORS = ("mean", "visible")  # how the controller is shown the weights; the paper's is the first


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
    if reduction is not None and (not isinstance(reduction, int) or reduction < 1):
        raise StepSizeError(f"reduction must be a whole number of at least 1, not {reduction!r}")
    if hasattr(model, "controllers") or "stepping" in model._modules:
        raise AlreadyAttachedError(
            f"{type(model).__name__} has a part or attribute named 'controllers' or 'stepping'; rename it"
        )
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
    attached.refuse_changes()
    effective = attached.effective_parameters()
    plain = copy.deepcopy(attached._base)
    for name, value in effective.items():
        attrgetter(name)(plain).copy_(value)  # not get_parameter: those of a frozen batch norm are buffers
    for name, value in (*plain.named_parameters(), *plain.named_buffers()):
        learned = name in effective or isinstance(value, nn.Parameter) or name.endswith(("running_mean", "running_var"))
        wrong = ~value.isfinite() if learned else value.isnan()  # a buffer may be a mask of infinities
        if not value.is_meta and wrong.any():
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
    with one_at_a_time(attached._base), no_autocast(attached):
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
            raise NotAttachedError(f"{type(net).__name__} has no controllers{_where_else(net)}")
        inner = wrapped
    return inner


def _where_else(net: object) -> str:
    parts = net.named_modules() if isinstance(net, nn.Module) else ()
    found = next((path for path, part in parts if isinstance(part, Attached)), None)
    return f", but its part {found} has: give that one" if found else "; call timestepper.attach first"


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
        wrapped = _WRAPPERS.intersection(base.__name__ for base in type(module).__mro__)
        if wrapped:
            raise WrappedModelError(
                f"{path or 'the model'} is wrapped in {wrapped.pop()}; attach first, then wrap the result"
            )
        if module._compiled_call_impl is not None:
            raise WrappedModelError(f"{path or kind} is compiled; attach first, then compile the result")
        if getattr(module, "grad_checkpointing", False) is True or kind == "CheckpointWrapper":
            raise ActivationCheckpointingError(NO_CHECKPOINTING)


_WRAPPERS = {
    "OptimizedModule",
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",  # what fully_shard makes of a module's class
    "AveragedModel",
}


def _say_rounding(dtypes: set[torch.dtype]) -> None:
    """A network in half precision loses bits in the one cast; say how many."""
    for dtype in (dtype for dtype in dtypes if dtype.itemsize < 4):
        warnings.warn(
            f"folded in float32 and cast once to {str(dtype).removeprefix('torch.')}: "
            f"a weight moves by at most {torch.finfo(dtype).eps / 2:.1e} of itself",
            stacklevel=3,
        )
