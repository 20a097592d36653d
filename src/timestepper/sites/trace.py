"""What one eager forward computes, as a graph: every function with its tensors, which are parameters, and whose.

A ``TorchFunctionMode`` sees each call of a torch function and traces nothing: what runs is the network itself, whatever
its forward does.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from timestepper.errors import MismatchError
from timestepper.sites.twin import converted

IN_PLACE = {"add_", "__iadd__"}
SUMS = {"add", "__add__", "__radd__"} | IN_PLACE
# They take a tensor for its device or shape alone.
_FRESH = {"new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"}
_FRESH |= {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
_WRITES = re.compile("[^_]_$|^__(i|set)")  # names of functions that write into what they are given
_HALVES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(eq=False)
class Node:
    """One tensor: an input, a parameter or buffer, a constant, or what a function returned."""

    number: int
    name: str  # of the function; "input", "parameter", "constant"
    shape: tuple[int, ...]
    module: str = ""  # the innermost one that was running
    running: frozenset[str] = frozenset()  # and all around it
    args: tuple = ()  # with nodes for tensors
    kwargs: dict[str, Any] = field(default_factory=dict)
    function: Callable | None = None
    part: int = 0  # which of the tensors that the function returned
    inputs: list["Node"] = field(default_factory=list)
    users: list["Node"] = field(default_factory=list)
    live: bool = False  # depends on the network's input
    owner: str = ""  # of a parameter: the layer that has it
    own_name: str = ""
    ancestors: int = 0  # a bit for the number of each
    occurrence: int = 0  # how many sums ran in its module before it

    @property
    def key(self) -> tuple[str, int]:
        """What names a sum, the same in every run of the network."""
        return self.module, self.occurrence

    def comes_from(self, other: "Node") -> bool:
        return bool(self.ancestors >> other.number & 1)


class Places:
    """Which module is running."""

    def __init__(self, root: nn.Module):
        self._root = root
        self.stack: list[str] = []
        self.failed = ""  # the innermost module that raised

    @contextmanager
    def followed(self) -> Iterator[None]:
        self.stack.clear()
        with ExitStack() as hooks:
            for path, module in self._root.named_modules():
                entering = partial(lambda path, *_: self.stack.append(path), path)
                hooks.enter_context(module.register_forward_pre_hook(entering, prepend=True))
                hooks.enter_context(module.register_forward_hook(self._leaving, always_call=True))
            yield

    def _leaving(self, module, inputs, output) -> None:
        path = self.stack.pop()
        if output is None:  # torch calls the hook after an exception too, without an output
            self.failed = self.failed or path

    @property
    def here(self) -> str:
        return self.stack[-1] if self.stack else ""


class Watching(TorchFunctionMode):
    """Calls every function in float64, where a network insists on less, and hands its sums to ``add``."""

    def __init__(self, places: Places, precise: bool = True):
        super().__init__()
        self.places = places
        self.precise = precise
        self.seen: Counter[str] = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function_name(func)
        if self.precise:
            func = Tensor.double if name in ("float", "half", "bfloat16") else func
            args, kwargs = tree_map(_precise, (args, kwargs))
        if name not in SUMS:
            return self.call(name, _lenient(func) if self.precise and not _WRITES.search(name) else func, args, kwargs)
        args += tuple(kwargs.pop(operand) for operand in ("input", "other") if operand in kwargs)
        if sum(isinstance(arg, Tensor) for arg in args[:2]) < 2:
            return self.call(name, func, args, kwargs)
        key = self.places.here, self.seen[self.places.here]
        self.seen[self.places.here] += 1
        return self.add(key, func, args, kwargs)

    def call(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Any:
        return func(*args, **kwargs)

    def add(self, key: tuple[str, int], func: Callable, args: tuple, kwargs: dict) -> Any:
        return func(*args, **kwargs)


class Trace(Watching):
    """The graph of one forward."""

    def __init__(self, root: nn.Module, inputs: Any, precise: bool = True):
        super().__init__(Places(root), precise)
        # A network that is not looked at in float64 is too large to be copied: these are its own.
        self._not_ours = {} if precise else {p.untyped_storage().data_ptr(): n for n, p in root.named_parameters()}
        self.nodes: list[Node] = []
        self.shared: set[tuple[str, str]] = set()  # parameters that several layers have
        self._known = WeakTensorKeyDictionary()  # the node of each tensor; weak, or all features would stay in memory
        first: dict[int, tuple[str, str]] = {}
        for path, module in root.named_modules():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None:
                    continue
                if id(tensor) in first:
                    self.shared |= {first[id(tensor)], (path, name)}
                    continue
                first[id(tensor)] = path, name
                self._known[tensor] = self._node("parameter", tensor, owner=path, own_name=name)
        for tensor in tree_flatten(inputs)[0]:
            if isinstance(tensor, Tensor):
                self._known[tensor] = self._node("input", tensor, live=True)

    @property
    def sums(self) -> list[Node]:
        return [node for node in self.nodes if node.name in SUMS and sum(isinstance(a, Node) for a in node.args) == 2]

    def call(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Any:
        if self._not_ours and _WRITES.search(name):
            self._refuse_to_write(args[0])
        mapped_args, mapped_kwargs = tree_map(self._of, (args, kwargs))  # before an in-place function changes them
        result = func(*args, **kwargs)
        if name == "__setitem__":
            self._record(name, args[0], mapped_args, mapped_kwargs, 0)
            return result
        if name == "copy_" and args[0]._is_view():
            base = args[0]._base  # what a part of it was written into depends on that now
            self._record("__setitem__", base, (self._of(base), *mapped_args[1:]), mapped_kwargs, 0)
        found = [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
        for part, tensor in enumerate(found):
            self._record(name, tensor, mapped_args, mapped_kwargs, part)
            self.nodes[-1].function = func
        return result

    def add(self, key: tuple[str, int], func: Callable, args: tuple, kwargs: dict) -> Any:
        result = self.call(function_name(func), func, args, kwargs)
        self.nodes[-1].occurrence = key[1]
        return result

    def _refuse_to_write(self, tensor: Tensor) -> None:
        if name := self._not_ours.get(tensor.untyped_storage().data_ptr()):
            raise MismatchError(
                f"the forward writes into {name}, and the network is too large to look at a copy; call it once in eval "
                "mode, if it writes but once"
            )

    def _record(self, name: str, tensor: Tensor, args: tuple, kwargs: dict, part: int) -> None:
        inputs = [] if name in _FRESH else [node for node in tree_flatten((args, kwargs))[0] if isinstance(node, Node)]
        node = self._node(name, tensor, args=args, kwargs=kwargs, part=part, inputs=inputs)
        node.live = any(other.live for other in inputs)
        for other in inputs:
            other.users.append(node)
            node.ancestors |= other.ancestors | 1 << other.number
        self._known[tensor] = node

    def _node(self, name: str, tensor: Tensor, **what) -> Node:
        running = frozenset(self.places.stack)
        node = Node(len(self.nodes), name, tuple(tensor.shape), self.places.here, running, **what)
        self.nodes.append(node)
        return node

    def _of(self, value: Any) -> Any:
        """The node of a tensor; a tensor that nobody made is a constant."""
        if not isinstance(value, Tensor):
            return value
        if value not in self._known:
            self._known[value] = self._node("constant", value)
        return self._known[value]


def function_name(func: Callable) -> str:
    name = getattr(func, "__name__", str(func))
    return func.__self__.__name__ if name == "__get__" else name  # type: ignore[attr-defined]


def _lenient(func: Callable) -> Callable:
    """For functions that take no two precisions, or none that is double, such as grouped matrix products."""

    def called(*args, **kwargs):
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            for dtype in (torch.float64, torch.float32):
                with suppress(RuntimeError):
                    args, kwargs = tree_map(partial(converted, dtype=dtype), (args, kwargs))
                    return tree_map(partial(converted, dtype=torch.float64), func(*args, **kwargs))
            raise

    return called


def _precise(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _HALVES else value
