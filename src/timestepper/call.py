"""One call of a network with effective parameters in the place of its own, and what cannot happen during one.

torch puts the parameters into the layers for as long as the call lasts. So no other thread may run the network or look
at it meanwhile, and no block may be run again afterwards, as activation checkpointing does in the backward pass: it
would find the trained parameters without their step sizes, and the gradients would be silently wrong. A compiled call
is one graph that has the effective parameters in it, and knows neither trouble.
"""

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.utils import checkpoint

from timestepper.errors import ActivationCheckpointingError, WrappedModelError

NO_CHECKPOINTING = (
    "activation checkpointing is on, and it recomputes blocks outside the call, without their step sizes; "
    "switch it off (timm: model.set_grad_checkpointing(False)) to train with controllers"
)


class _Turns:
    """A lock for every network. Kept here and not on the network, so that it can be copied and pickled."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._of: WeakKeyDictionary[nn.Module, threading.RLock] = WeakKeyDictionary()

    def of(self, base: nn.Module) -> Any:
        with self._door:
            return self._of.setdefault(base, threading.RLock())


_turns = _Turns()
_here = threading.local()  # .calls: how many calls this thread is in


def _forget_turns() -> None:
    """In a process that was forked, the threads which held a turn are gone."""
    global _turns
    _turns = _Turns()


os.register_at_fork(after_in_child=_forget_turns)


def one_at_a_time(base: nn.Module) -> AbstractContextManager:
    """Held while parameters are read or replaced; a graph that is being compiled does neither when it runs."""
    return nullcontext() if torch.compiler.is_compiling() else _turns.of(base)


def call(base: nn.Module, parameters: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Run a network with these parameters, inside :func:`one_at_a_time`."""
    with nullcontext() if torch.compiler.is_compiling() else _without_checkpointing():
        # Not tied: of a block that stands in two places, torch would leave the effective weights behind in the network.
        return functional_call(base, parameters, args, kwargs, tie_weights=False)


def refuse_tracing(args: tuple, kwargs: dict[str, Any]) -> None:
    """torch's older ways to trace a network cannot follow parameters that are computed."""
    # Of the network that it was given, torch.fx traces args and kwargs themselves; of one inside it, what they hold.
    symbolic = isinstance(kwargs, fx.Proxy) or any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))
    if symbolic or torch.jit.is_tracing():
        raise WrappedModelError(
            "torch.jit and torch.fx cannot trace a network with controllers; trace timestepper.fold(net), or use "
            "torch.compile or torch.export"
        )


@contextmanager
def _without_checkpointing() -> Iterator[None]:
    _watch_checkpointing()
    _here.calls = getattr(_here, "calls", 0) + 1
    try:
        yield
    finally:
        _here.calls -= 1


def _refuse_checkpointing() -> None:
    """Where nothing is recomputed, without gradients, there is nothing to refuse."""
    if getattr(_here, "calls", 0) and torch.is_grad_enabled():
        raise ActivationCheckpointingError(NO_CHECKPOINTING)


@functools.cache
def _watch_checkpointing() -> None:
    """Let torch ask us before it recomputes anything, from the first call on and for good.

    Whichever way a network imported ``checkpoint``, the function looks these two classes up: one for each of its modes.
    Ours are the same but for the question, which threads that are in no call of ours do not notice.
    """

    class _CheckpointFrame(checkpoint._CheckpointFrame):
        def __init__(self, *args, **kwargs):
            _refuse_checkpointing()
            super().__init__(*args, **kwargs)

    class CheckpointFunction(checkpoint.CheckpointFunction):
        @classmethod
        def apply(cls, *args, **kwargs):
            _refuse_checkpointing()
            return super().apply(*args, **kwargs)

    for watched in (_CheckpointFrame, CheckpointFunction):
        setattr(checkpoint, watched.__name__, watched)
