"""Stepped layers: absorbing layers that run with effective parameters, and are to everybody else what they were.

A stepped layer is the absorbing layer itself, under a subclass of its own class. The subclass changes one thing: the
layer's own forward runs on a *view* of the layer, an object of its class that shares all the layer has and gives the
effective parameters where the layer gives the trained ones. So nothing is opened, swapped or put back: an optimiser, a
state dict, FSDP or a debugger never sees anything but the trained parameters, in whatever thread and whatever happens
in the middle of a forward.
"""

import functools
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from timestepper.errors import ActivationCheckpointingError, WrappedModelError
from timestepper.reparam import Entry, entered, refuse_split, trained


class Taken(NamedTuple):
    """A parameter of a layer that a step size enters."""

    entry: Entry
    stage: int
    begin: int  # of its step sizes, among those of its stage
    end: int


class Given(NamedTuple):
    """What a layer runs with in one pass of its network."""

    sizes: Tensor  # step sizes of some stages, one after the other
    begins: dict[int, int]  # where those of a stage begin
    made: dict[str, tuple[Tensor, Tensor | None]]  # by name: a trained parameter, and the effective one made from it
    graded: bool  # whether the pass has gradients

    def step_size(self, taken: Taken) -> Tensor:
        first = self.begins[taken.stage]
        return self.sizes[first + taken.begin : first + taken.end]


class Cell:
    """What one thread has given to one layer."""

    def __init__(self) -> None:
        self.given: Given | None = None  # while its network runs, or it runs by itself


class _OfThread(threading.local):
    """Its cell is filled and emptied, and itself never changed: torch.compile would not follow that everywhere."""

    def __init__(self) -> None:
        self.cell = Cell()


class Slot:
    """Where a layer finds what it is given, in every thread its own: another one may train while this one evaluates.

    It is not copied with its layer: a copy has passes of its own.
    """

    def __init__(self) -> None:
        self.here = _OfThread()
        # Of the last pass with gradients in any thread, for blocks that are recomputed: a backward pass may run in
        # another thread than its forward. Weights do not change between the two, so every pass since has the same.
        self.kept: Given | None = None

    def __reduce__(self):
        return Slot, ()


def make_stepped(layer: nn.Module, taken: dict[str, Taken], alone: Callable[[frozenset[int]], Given]) -> None:
    """Turn a layer into a stepped layer, in place.

    ``alone`` gives the step sizes of some stages, which it runs with when it is called by itself.
    """
    original: Any = type(layer)
    layer.__class__ = _stepped_class(original, tuple(taken))
    layer.__dict__.update(_taken=taken, _alone=alone)
    _equip(layer)


def make_reader(module: nn.Module, names: tuple[str, ...]) -> None:
    """Let a module that reads the weights of its stepped layers, and does not call them, see what they see.

    A layer may lie deeper (``self_attn.out_proj``) if the child that it lies in is a reader itself.
    """
    original: Any = type(module)
    module.__class__ = _reader_class(original, names)
    _equip(module)


def make_plain(module: nn.Module) -> None:
    """The layer, reader or container as it was."""
    for name in ("_taken", "_alone", "_slot", "_view"):
        module.__dict__.pop(name, None)
    module.__class__ = type(module)._original  # type: ignore[attr-defined]  # last: after Ctrl-C, call it again


def is_stepped(module: nn.Module) -> bool:
    return hasattr(type(module), "_original")


def _equip(module: nn.Module) -> None:
    """What a layer and its copies each have of their own."""
    view = object.__new__(type(module)._seen_by_itself)  # type: ignore[attr-defined]
    object.__setattr__(view, "__dict__", module.__dict__)
    module.__dict__.update(_slot=Slot(), _view=view)


def subclass(original: type[nn.Module], names: dict[str, Any]) -> type[nn.Module]:
    """Under the original's name and module: nobody but type() can tell."""
    named = {"__module__": original.__module__, "__qualname__": original.__qualname__, "__doc__": original.__doc__}
    return type(original.__name__, (original,), {**named, **names})


def _running_on_a_view(
    make: Callable, original: type[nn.Module], names: tuple[str, ...], forward: Callable, see: Callable[[str], Callable]
) -> type[nn.Module]:
    """A subclass whose view gives something else under some names."""

    def reduce(self, protocol):
        state = {key: value for key, value in vars(self).items() if key not in ("_slot", "_view")}
        return remade, (make, original, names), state

    def set_state(self, state):
        original.__setstate__(self, state)
        _equip(self)

    own = {"forward": functools.wraps(original.forward)(forward), "__reduce_ex__": reduce, "__setstate__": set_state}
    view = subclass(original, {name: property(see(name)) for name in (name.partition(".")[0] for name in names)})
    return subclass(original, {**own, "_original": original, "_seen_by_itself": view})


def remade(make: Callable[..., type[nn.Module]], *given: Any) -> nn.Module:
    """Without its contents, for copies and for pickles."""
    return object.__new__(make(*given))


@functools.cache
def _stepped_class(original: Any, names: tuple[str, ...]) -> type[nn.Module]:
    def forward(self, *args, **kwargs):
        if "_slot" not in self.__dict__:  # plain again, and called by what was put around it before: accelerate's hooks
            return original.forward(self, *args, **kwargs)
        given = self._slot.here.cell.given
        if given is None:
            return _run_alone([self], original.forward, self, args, kwargs)
        if given.graded and not torch.compiler.is_compiling() and not torch.is_grad_enabled():
            _refuse_reentrant()
        return original.forward(self._view, *args, **kwargs)

    return _running_on_a_view(_stepped_class, original, names, forward, _effective)


@functools.cache
def _reader_class(original: Any, names: tuple[str, ...]) -> type[nn.Module]:
    def forward(self, *args, **kwargs):
        layers = [_below(self, name) for name in names]
        if any(layer._slot.here.cell.given is None for layer in layers):
            return _run_alone(layers, original.forward, self, args, kwargs)
        return original.forward(self._view, *args, **kwargs)

    return _running_on_a_view(_reader_class, original, names, forward, _child_s_view)


def _below(module: nn.Module, path: str) -> Any:
    for name in path.split("."):
        module = module._modules[name]  # type: ignore[assignment]
    return module


def _child_s_view(name: str) -> Callable[[Any], nn.Module]:
    return lambda view: view._modules[name]._view


def _effective(name: str) -> Callable[[Any], Tensor]:
    def get(view) -> Tensor:
        given, raw = view._slot.here.cell.given, trained(view, name)
        if given is None:  # asked after the layer's forward (by a checkpoint inside it), or in another thread
            given = _recomputed(view._slot) or _apart(view)
        elif given.graded and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            _refuse_reentrant()
        was, made = given.made.get(name, (None, None))
        # The trained one may be another by now: FSDP's gathered weight, or one that functional_call put in.
        if made is not None and (torch.compiler.is_compiling() or was is raw):
            return made
        return _made(view, view._taken[name], given)[1]

    return get


def _made(layer: Any, taken: Taken, given: Given) -> tuple[Tensor, Tensor]:
    """A trained parameter and the effective one, at the moment at which the layer computes with it."""
    raw = entered(layer, taken.entry)
    refuse_split(taken.entry.parameter, raw)
    return raw, taken.entry.apply(raw, given.step_size(taken))


def _run_alone(layers: list, forward: Callable, module, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Layers outside of any pass: their block is called by itself, or recomputed in the backward pass."""
    if not torch.compiler.is_compiling() and torch.fx._symbolic_trace.is_fx_symbolic_tracing():
        raise WrappedModelError(
            f"torch.fx would write today's step sizes into the traced {type(module).__name__}; trace "
            "timestepper.fold(net), or use torch.compile or torch.export"
        )
    try:
        for layer in layers:
            layer._slot.here.cell.given = _recomputed(layer._slot) or _apart(layer)
        return forward(module._view, *args, **kwargs)
    finally:
        try:
            _take_back(layers)
        except BaseException:  # Ctrl-C, just here
            _take_back(layers)
            raise


def _apart(layer: Any) -> Given:
    """What a layer runs with that is called by itself, hidden from a checkpoint that counts what is saved inside it.

    A block may run by itself and be recomputed with the step sizes of a pass, which lie outside of it, or the reverse.
    """
    stages = frozenset([taken.stage for taken in layer._taken.values()])
    if torch.compiler.is_compiling():
        return layer._alone(stages)
    counted = torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    hidden = torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda saved: saved)
    with hidden if counted else nullcontext():
        given = layer._alone(stages)
        for name, taken in layer._taken.items():  # here, and not where a checkpoint inside the layer would see it
            given.made[name] = _made(layer, taken, given)
        return given


def _take_back(layers: list) -> None:
    for layer in layers:
        layer._slot.here.cell.given = None


def _recomputed(slot: Slot) -> Given | None:
    """What the layer ran with in the pass that a block is recomputed for; None where it is called by itself."""
    if torch.compiler.is_compiling():
        return None
    if torch._C._current_graph_task_id() != -1:  # in a backward pass
        return slot.kept
    if torch.is_grad_enabled():
        slot.kept = None  # should this call be recomputed, it is called by itself again
    else:
        _refuse_reentrant()
    return None


def _refuse_reentrant() -> None:
    """Reentrant checkpointing runs every block in a backward pass of its own, and all need the same controllers'.

    Torch's, and those of others: an autograd Function that calls layers without gradients, to recompute them later.
    """
    for frame, _ in traceback.walk_stack(sys._getframe()):
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_varnames else None
        if isinstance(first, FunctionCtx) and any(first.needs_input_grad):  # type: ignore[attr-defined]
            raise ActivationCheckpointingError(
                "reentrant activation checkpointing cannot train step sizes; use the non-reentrant form "
                "(use_reentrant=False; transformers: activation_checkpointing_kwargs={'use_reentrant': False}, "
                "gradient_checkpointing_kwargs in older versions)"
            )
