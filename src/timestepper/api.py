"""Attach, fold, detach and look inside: the method on a whole network."""

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Real
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from timestepper import equations
from timestepper.controllers import Controller, ControllerSpec, parse
from timestepper.controllers.base import fits_float32
from timestepper.errors import MismatchError, NonFiniteError, StepSizeError, UnknownNameError, WrappedModelError
from timestepper.links import in_shards, leave_others_forwards, refuse_wrapped
from timestepper.looking import held_still
from timestepper.sites import Discovery, Stage, find, reduced, search
from timestepper.stepped import is_stepped
from timestepper.steps import Stepping, Steps, find_inside, find_steps
from timestepper.warned import warn_if_left_out, warn_if_trained, warn_if_training, warn_of_rounding

Network = TypeVar("Network", bound=nn.Module)
DESCRIPTORS = ("mean", "visible")  # how the controller is shown the weights; the paper's is the first
_FREEZING = threading.Lock()  # while frozen_steps is entered and left; no forward waits for it


@torch.inference_mode(False)  # else the controllers could not be trained
def attach(
    model: Network,
    controller: str | ControllerSpec | type[Controller] = "lstm",
    *,
    start: str | float = "paper",
    example: Any = None,
    sites: str | Sequence[str] | Discovery | None = None,
    exclude: str | Sequence[str] | None = None,
    reduction: int | None = None,
    descriptor: str = "mean",
    descriptor_gradient: bool = True,
) -> Network:
    """Put a controller on every stage of a residual network, in place.

    The network keeps its class, signature, methods and keys; it gains ``controllers``, its first child. Train it as it
    was trained before: step sizes are part of every forward, whichever part of the network is called.

    Args:
        model: the network.
        controller: ``"lstm"`` (the paper's), ``"two_fc"``, ``"independent"``, ``"fixed(0.01)"``, ``"scalar(0)"``,
            ``"channel(0.1)"``, ``"depth(0.5)"``, ``"gain"``, or one of your own, by its name or its class.
        start: where step sizes begin. ``"paper"`` is about one half; ``"identity"`` leaves the function of the network
            as it was, to the last bit: its branches run with dt / dt0, where dt0 are the first step sizes; a number, at
            that number.
        example: for networks that no adapter knows, what their forward takes, to discover their residual branches: a
            tensor, a tuple of arguments, or a dict of arguments by name. timm's and transformers' need none.
        sites: names of the sites that get step sizes, or patterns (``"blocks.*.mlp"``); or what ``discover`` has
            found in this very network, which is then not looked for again. By default all, with a warning where
            residual sums are left out.
        exclude: names or patterns of those that get none.
        reduction: the paper's r; by default 4 for basic blocks, 8 for bottlenecks, and for discovered networks what
            keeps the controllers at a tenth of the network's parameters.
        descriptor: ``"visible"`` shows the controller its weights normalised, with their scale, instead of as they are.
        descriptor_gradient: False stops the gradient of the step sizes at the convolution weights that are read.

    Returns:
        The very module that was given.

    Raises:
        NoSitesError: no residual branch is found; the message says of the sums that are there why.
        MismatchError: nothing is known of the network's input, or it fails on the example.
        UnsupportedSiteError: a branch ends in a layer that cannot take a step size.
        AlreadyAttachedError, WrappedModelError: it has controllers already; it is compiled or wrapped.
        UnknownNameError, StepSizeError: of a controller or an option that is not.
    """
    refuse_wrapped(model)
    spec = parse(controller)
    _refuse_odd_options(reduction, descriptor, descriptor_gradient)
    begin = _start(start, spec)
    stages, left_out = find(model, _bare, example, sites, exclude)
    if reduction is None and any(site.entries for stage in stages for site in stage.sites):  # discovered
        size = sum(parameter.numel() for parameter in model.parameters())
        stages = reduced(stages, spec, descriptor == "visible", size)
    _refuse_division_by_zero(spec, stages)
    warn_if_trained(model, spec, begin)
    warn_if_left_out(model, sum(len(stage.sites) for stage in stages), left_out)
    chosen = exclude is not None or not (sites is None or isinstance(sites, Discovery))
    Steps(model, Stepping(stages, spec, reduction, descriptor, descriptor_gradient, begin, chosen))
    return model


def _refuse_odd_options(reduction: int | None, descriptor: str, descriptor_gradient: bool) -> None:
    if descriptor not in DESCRIPTORS:
        raise UnknownNameError(f"unknown descriptor {descriptor!r}; known are {', '.join(DESCRIPTORS)}")
    if reduction is not None and (type(reduction) is bool or not isinstance(reduction, int) or reduction < 1):
        raise StepSizeError(f"reduction must be a whole number of at least 1, not {reduction!r}")
    if type(descriptor_gradient) is not bool:
        raise StepSizeError(f"descriptor_gradient must be True or False, not {descriptor_gradient!r}")


def _start(start: str | float, controller: ControllerSpec) -> float | None:
    """The first step size, None where it is the controller's own."""
    if start == "paper":
        return None
    if controller.controller.own_start:
        raise StepSizeError(f"{controller} has a start of its own; leave start= out")
    if start == "identity":
        return 1.0
    if isinstance(start, bool) or not isinstance(start, Real) or not (fits_float32(start) and start > 0):
        raise StepSizeError(f"start must be paper, identity or a positive number of float32, not {start!r}")
    return float(start)


def _refuse_division_by_zero(controller: ControllerSpec, stages: Sequence[Stage]) -> None:
    gated = next((site.path for stage in stages for site in stage.sites if site.gate), None)
    if gated is not None and controller.options.get("value") == 0:
        raise StepSizeError(
            f"{gated}: {controller} would divide the first layer of its squeeze-excite gate by 0; use another value"
        )


def discover(net: nn.Module, example: Any = None) -> Discovery:
    """Look for the residual branches of a network, whatever it is, and prove for each that it can take a step size.

    One eager forward on a copy shows the sums; for each the walk back along its branch finds the parameters that the
    step size enters. The network itself is not touched.

    Args:
        net: a network without controllers.
        example: what its forward takes: a tensor, a tuple of arguments, or a dict of arguments by name. By default it
            is made from the network's configuration (timm, transformers).

    Returns:
        A table: ``print`` it. ``attach(net, sites=...)`` takes it.

    Raises:
        MismatchError: the network says nothing of its input, or fails on the example.
        AlreadyAttachedError, WrappedModelError: it has controllers already; it is compiled or wrapped.
    """
    refuse_wrapped(net)
    return search(net, _bare, example)


def _bare(net: nn.Module, stages: tuple[Stage, ...]) -> Steps:
    """One learned number per channel and site: what proves that a site takes its step sizes."""
    return Steps(net, Stepping(stages, ControllerSpec("independent"), None, "mean", True))


@torch.inference_mode(False)  # else the copy could not be trained
@torch.no_grad()
def fold(net: nn.Module) -> nn.Module:
    """A plain network with the step sizes in its weights.

    Works in float32 or better and casts once, whatever the network's precision.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.

    Returns:
        A copy of the network as it was before ``attach``: its class and keys, the attached network's logits. ``net``
        stays as it is.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        NonFiniteError: a weight is NaN or infinite; the message names it.
        WrappedModelError, MismatchError: ``net`` is sharded over several processes, or patched; it has parts of
            another one.
    """
    found = find_steps(net)
    found.links.refuse_changes(found.root)
    if in_shards(found.root):
        raise WrappedModelError(
            f"{type(found.root).__name__} is sharded; load its full state dict into an attached network that is not, "
            "and fold that one"
        )
    effective = found.effective_parameters()
    plain = detach(copy.deepcopy(found.root))
    leave_others_forwards(plain)
    for name, value in effective.items():
        attrgetter(name)(plain).copy_(value)  # not get_parameter: those of a frozen batch norm are buffers
    for name, part in plain.named_modules():
        if is_stepped(part):
            raise MismatchError(
                f"cannot fold: {name} is a copy from another attached network and still has its step sizes; "
                "detach that network, copy again, and attach then"
            )
    for name, value in (*plain.named_parameters(), *plain.named_buffers()):
        learned = name in effective or isinstance(value, nn.Parameter) or name.endswith(("running_mean", "running_var"))
        wrong = ~value.isfinite() if learned else value.isnan()  # a buffer may be a mask of infinities
        if not value.is_meta and wrong.any():
            raise NonFiniteError(f"cannot fold: {name} holds NaN or infinity; go back to a sound checkpoint")
    warn_of_rounding({value.dtype for value in effective.values()})
    return plain


def detach(net: nn.Module) -> nn.Module:
    """Take controllers and step sizes off a network again, in place.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.

    Returns:
        The very module that was attached to, with its trained weights as they are: same class and keys, nothing left
        behind. (``fold`` gives a network that computes the same; this one does not.)

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    found = find_steps(net)
    found.take_off()
    return found.root


@contextmanager
def frozen_steps(net: nn.Module) -> Iterator[nn.Module]:
    """``with frozen_steps(net):`` computes step sizes and effective parameters once, for all calls inside.

    For inference. Outside of it nothing is kept between two calls; inside, changes to the weights of the network or
    its controllers are not noticed where they enter a step size. No gradients: a network in train mode is warned of.

    Args:
        net: an attached network.

    Yields:
        The same network.

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    found, own = find_steps(net), object()
    warn_if_training(found.root)
    with torch.no_grad(), held_still(found.root):
        found.links.refuse_changes(found.root)
        givens = found.givens(found.root)

    def thaw() -> None:
        with _FREEZING:  # several threads may leave in any order
            found.freezing.pop(own, None)
            found.frozen = next(reversed(found.freezing.values()), None)

    try:
        try:
            with _FREEZING:
                found.frozen = found.freezing[own] = givens
            yield net
        finally:
            thaw()
    finally:
        thaw()  # once more: Ctrl-C may have hit it


@torch.no_grad()
def step_sizes(net: nn.Module) -> dict[str, Tensor]:
    """Step sizes of an attached network.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile; under FSDP2 every rank has to call.

    Returns:
        By stage, each (depth, channels).

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    return find_steps(net).step_sizes()


def evolution_time(net: nn.Module) -> dict[str, float]:
    """Step sizes summed over depth, averaged over channels. A plain stage has its depth.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.

    Returns:
        By stage.

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    return {name: equations.evolution_time(dt).mean().item() for name, dt in step_sizes(net).items()}


def is_attached(net: nn.Module) -> bool:
    """Whether a network, or the one inside a wrapper, has controllers.

    Args:
        net: any network.

    Returns:
        True or False.
    """
    return find_inside(net) is not None
