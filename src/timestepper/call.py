"""One call of a network with effective parameters in the place of its own, and what cannot happen during one.

torch puts the parameters into the layers for as long as the call lasts. So no other thread may run the network or look
at it meanwhile, and no block may be run again afterwards, as activation checkpointing does in the backward pass: it
would find the trained parameters without their step sizes, and the gradients would be silently wrong. A compiled call
is one graph that has the effective parameters in it, and knows neither trouble.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils import checkpoint

from timestepper.errors import ActivationCheckpointingError, WrappedModelError

NO_CHECKPOINTING = (
    "activation checkpointing is on, and it recomputes blocks outside the call, without their step sizes; "
    "switch it off (timm: model.set_grad_checkpointing(False)) to train with controllers"
)

_TURN = threading.RLock()


def one_at_a_time() -> AbstractContextManager:
    """Held while parameters are read or replaced; a graph that is being compiled does neither when it runs."""
    return nullcontext() if torch.compiler.is_compiling() else _TURN


def call(base: nn.Module, parameters: Mapping[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a network with these parameters, inside :func:`one_at_a_time`."""
    # Not tied: of a block that stands in two places, torch would leave the effective weights behind in the network.
    if torch.compiler.is_compiling():
        return functional_call(base, dict(parameters), args, kwargs, tie_weights=False)
    with _without_checkpointing():
        return functional_call(base, dict(parameters), args, kwargs, tie_weights=False)


def refuse_tracing(args: tuple, kwargs: dict[str, Any]) -> None:
    """torch's older ways to trace a network cannot follow parameters that are computed."""
    # Of the network that it was given, torch.fx traces args and kwargs themselves; of one inside it, what they hold.
    symbolic = isinstance(kwargs, fx.Proxy) or any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))
    if symbolic or torch.jit.is_tracing():
        raise WrappedModelError(
            "torch.jit and torch.fx cannot trace a network with controllers; trace timestepper.fold(net), or use "
            "torch.compile or torch.export"
        )


class _Refused:
    """In the place of what torch makes of every block that it will recompute; other threads get the original."""

    def __init__(self, original: Any):
        self._original = original
        self._thread = threading.get_ident()

    def __call__(self, *args, **kwargs):
        return self._allowed()(*args, **kwargs)

    def apply(self, *args):
        return self._allowed().apply(*args)

    def _allowed(self) -> Any:
        if threading.get_ident() == self._thread:
            raise ActivationCheckpointingError(NO_CHECKPOINTING)
        return self._original


@contextmanager
def _without_checkpointing() -> Iterator[None]:
    """Whichever way a network imported ``checkpoint``, the function looks these two up: one for each of its modes."""
    names = ("_CheckpointFrame", "CheckpointFunction")
    originals = {name: getattr(checkpoint, name) for name in names}
    for name, original in originals.items():
        setattr(checkpoint, name, _Refused(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(checkpoint, name, original)
