"""A copy of a network to try things on: in float64, without hooks, no parameter zero; and calls of it."""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from timestepper.errors import MismatchError, first_line

_OWN = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HAS_ITS_HOOKS = "_output_capturing_hooks_installed"  # on networks of transformers, which put hooks in once


class FailedError(MismatchError):
    """A network has raised something, on an example."""

    def __init__(self, net: nn.Module, call: "Call", what: str):
        self.what = what
        super().__init__(
            f"{type(net).__name__} fails on an example of {call}{what}; pass example=, what its forward takes"
        )


@dataclass(frozen=True)
class Call:
    """The arguments of a forward, which every call gets a copy of: a network may write into them, a cache say."""

    args: tuple
    kwargs: dict[str, Any]

    def __call__(self, net: nn.Module, dtype: torch.dtype = torch.float64, places: Any = None) -> Any:
        """Call it with the same random numbers every time; ``places`` says afterwards where it failed."""
        with self.explained(net, places):
            args, kwargs = self.arguments(net, dtype)
            return net(*args, **kwargs)

    def arguments(self, net: nn.Module, dtype: torch.dtype) -> tuple[tuple, dict[str, Any]]:
        """A copy of them where the network is, in its precision; seeds what the network draws."""
        seed()
        device = next((tensor.device for tensor in net.parameters()), None)
        return tree_map(lambda value: converted(value, dtype, device), copy.deepcopy((self.args, self.kwargs)))

    @contextmanager
    def explained(self, net: nn.Module, places: Any = None) -> Iterator[None]:
        """What a foreign network raises, which can be anything, in one line."""
        try:
            yield
        except MismatchError:
            raise
        except Exception as error:
            where = f" in {places.failed}" if places is not None and places.failed else ""
            raise FailedError(net, self, f"{where}: {type(error).__name__}: {first_line(error)}") from error

    def __str__(self) -> str:
        shown = [_shown(value) for value in self.args] + [f"{key}={_shown(v)}" for key, v in self.kwargs.items()]
        return f"({', '.join(shown)})"


def twin(net: nn.Module) -> nn.Module:
    """A copy in float64 that shares nothing with the network; what is constant in it gets random numbers.

    A branch that begins at zero would hide a mistake, and so would a zero bias or a scale of one.
    """
    return _filled(_copied(net, _double, lambda tensor: nn.Parameter(_double(tensor), tensor.requires_grad)))


def lean_twin(net: nn.Module) -> nn.Module:
    """A copy that has the parameters of the network itself, to look at a large one; buffers are its own."""
    return _copied(net, lambda tensor: tensor.clone(), lambda tensor: tensor)


def without_hooks(net: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A copy that calls nobody back: a user's hooks log and collect what is computed.

    They are not even copied, because what they are bound to (a log file, say) may refuse it. Hooks that a network needs
    itself it puts in again, if it does not know that it had them.
    """
    none: dict[int, Any] = {id(getattr(module, name)): OrderedDict() for module in net.modules() for name in _HOOKS}
    copied = copy.deepcopy(net, {**none, **(memo or {})})
    for module in copied.modules():
        vars(module).pop(_HAS_ITS_HOOKS, None)
    return copied


def _copied(net: nn.Module, plain: Callable[[Tensor], Tensor], parameter: Callable[[Tensor], Tensor]) -> nn.Module:
    memo: dict[int, Any] = {}
    for module in net.modules():
        memo |= {id(value): plain(value.detach()) for value in vars(module).values() if isinstance(value, Tensor)}
        for tensor in module._parameters.values():
            if tensor is not None and id(tensor) not in memo:
                memo[id(tensor)] = parameter(tensor)
        memo |= {id(b): plain(b.detach()) for b in module._buffers.values() if b is not None and id(b) not in memo}
    try:
        return without_hooks(net, memo)
    except Exception as error:  # of a foreign module, which can raise anything
        raise MismatchError(
            f"{type(net).__name__} cannot be copied to look for its sites: {type(error).__name__}: {first_line(error)}"
        ) from error


@torch.no_grad()
def _filled(net: nn.Module) -> nn.Module:
    drawing = torch.Generator().manual_seed(0)
    means = [buffer for name, buffer in net.named_buffers() if name.endswith(("running_mean", "bias"))]
    for tensor in (*net.parameters(), *means):
        if not tensor.is_floating_point() or not tensor.numel() or (tensor != tensor.flatten()[0]).any():
            continue  # it has different numbers already
        noise = 0.1 * torch.randn(tensor.shape, generator=drawing, dtype=tensor.dtype, device="cpu").to(tensor.device)
        tensor.add_(noise if not tensor.any() else noise * tensor)
    return net


def in_single(net: nn.Module) -> None:
    """To float32, with what a network has computed once and kept."""
    net.float()
    for module in net.modules():
        kept = {n: v for n, v in vars(module).items() if isinstance(v, Tensor | dict | list) and n not in _OWN}
        single = partial(converted, dtype=torch.float32)
        vars(module).update({name: tree_map(single, value) for name, value in kept.items() if _has_double(value)})


@contextmanager
def left_alone() -> Iterator[None]:
    """Random state as it was; of GPUs where they are in use, because to ask for it would begin to use them all."""
    state, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()):
        try:
            yield
        finally:
            random.setstate(state)
            np.random.set_state(of_numpy)


def seed() -> None:
    """Make dropout the same in every run. ``torch.manual_seed`` would also seed GPUs that are used later."""
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    random.seed(0)
    np.random.seed(0)


def _has_double(kept: Any) -> bool:
    return any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in tree_flatten(kept)[0])


def _double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    device = "cpu" if tensor.device.type == "mps" else tensor.device  # which has no float64
    return tensor.to(device, torch.float64 if tensor.is_floating_point() else tensor.dtype, copy=True)


def converted(value: Any, dtype: torch.dtype, device: torch.device | None = None) -> Any:
    """A tensor in another precision, where it has one, and on another device, where one is given."""
    if not isinstance(value, Tensor):
        return value
    return value.to(device or value.device, dtype if value.is_floating_point() else value.dtype)


def _shown(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
