"""How far one block can spread two inputs: a sum over the ways through it, each a product of layer norms.

The block's graph is walked once on real features. Every layer either has a rule here or is refused by name, so a
bound never misses an operation.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from timestepper.errors import StabilityError, first_line
from timestepper.stability import operators
from timestepper.stability.chain import Link
from timestepper.stability.operators import Operator


@dataclass(frozen=True)
class Way:
    """One way through a block: the linear layers on it, and the Lipschitz constant of all else on it."""

    layers: tuple[Operator, ...] = ()
    constant: float = 1.0

    def times(self, constant: float) -> "Way":
        return Way(self.layers, self.constant * abs(constant))

    def through(self, layer: Operator) -> "Way":
        return Way((*self.layers, layer), self.constant)

    def joined_by(self, norm: Operator) -> "Way":
        """A batch norm directly behind the last convolution is one operator with it."""
        return Way((*self.layers[:-1], operators.joined(self.layers[-1], norm)), self.constant)


Ways = tuple[Way, ...]

# Largest slopes, rounded up in the last digit shown.
_SLOPES: dict[object, float] = {
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout2d, "contiguous", "clone", "detach"), 1.0),
    **dict.fromkeys((nn.ReLU, F.relu, F.relu_, torch.relu, "relu", "relu_"), 1.0),
    **dict.fromkeys((nn.ReLU6, F.relu6, nn.Hardtanh, nn.Tanh, torch.tanh, F.tanh, "tanh", nn.Softplus), 1.0),
    **dict.fromkeys((nn.Sigmoid, torch.sigmoid, F.sigmoid, "sigmoid"), 0.25),
    **dict.fromkeys((nn.SiLU, F.silu), 1.1),
    **dict.fromkeys((nn.GELU, F.gelu), 1.13),
    **dict.fromkeys((nn.Hardswish, F.hardswish), 1.5),
}
# Not in place: a graph does not say who else sees the changed value. (+= is traced as +.)
_SUMS = (operator.add, operator.sub, torch.add, torch.sub, "add", "sub")
_PRODUCTS = (operator.mul, torch.mul, "mul")
# Several tensors, each of which holds every element of the input at most once.
_PIECES = (torch.chunk, torch.split, torch.unbind, "chunk", "split", "unbind")
# Numbers that are made of features. All other numbers, such as shapes, are the same for every input.
_READ_OUT = ("item", "tolist")


@torch.no_grad()
def ways_through(link: Link, features: Tensor) -> Ways:
    """All ways through the block of ``link`` for features that enter it (one sample is enough)."""
    try:
        graph = fx.symbolic_trace(link.block)
    except Exception as error:
        raise StabilityError(
            f"{link.path}: cannot see through {type(link.block).__name__} ({first_line(error)}); {_ADVICE}"
        ) from error
    walk = _Walk(graph, link.path)
    walk.run(features[:1].clone())
    return walk.found


_ADVICE = "leave the bound out (--no-bound): measured growth, eigenvalues, gradients and robustness work without it"


class _Walk(fx.Interpreter):
    """Runs a block and notes, for every value in it, the ways on which the input reaches it."""

    def __init__(self, graph: fx.GraphModule, path: str):
        super().__init__(graph)
        self.extra_traceback = False  # our errors are one line
        self.path = path
        self.ways: dict[fx.Node, Ways] = {}
        self.elements: dict[fx.Node, int] = {}
        self.found: Ways = ()

    def run_node(self, n: fx.Node):
        before = [value for value in map(self.env.get, n.all_input_nodes) if isinstance(value, Tensor)]
        size = before[0].shape[2:] if before else torch.Size()
        value = super().run_node(n)
        if n.op == "placeholder":
            self.ways[n] = (Way(),) if isinstance(value, Tensor) else ()
        elif n.op == "output":
            self.found = self.ways[n.all_input_nodes[0]]
        elif not any(self.ways.get(source) for source in n.all_input_nodes):
            self.ways[n] = ()  # the input does not reach it: constant
        elif not isinstance(value, Tensor):
            self.ways[n] = self._through_other(n, value)
        elif n.op == "call_module":
            self.ways[n] = self._through_layer(n, self.fetch_attr(str(n.target)), size)
        else:
            self.ways[n] = self._through_function(n, value)
        if isinstance(value, Tensor):
            self.elements[n] = value.numel()
        return value

    def _through_other(self, n: fx.Node, value: Any) -> Ways:
        """Numbers and collections: a shape is constant, pieces of a tensor are reached as the whole is."""
        if n.target in _PIECES:
            return self.ways[n.all_input_nodes[0]]
        if n.target in _READ_OUT or _holds_tensors(value):
            kind = type(self.fetch_attr(str(n.target))).__name__ if n.op == "call_module" else _name(n.target)
            raise self._unknown(n, kind)
        return ()

    def _through_layer(self, n: fx.Node, layer: Any, size: torch.Size) -> Ways:
        path = f"{self.path}.{n.target}"
        source = n.all_input_nodes[0]
        ways = self.ways[source]
        kind = type(layer)  # exactly: a subclass may do more than its parent
        if kind is nn.Conv2d:
            convolution = operators.convolution(path, layer, (size[0], size[1]))
            return tuple(way.through(convolution) for way in ways)
        if kind is nn.Linear:
            return tuple(way.through(operators.linear(path)) for way in ways)
        if kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.SyncBatchNorm):
            norm = operators.batch_norm(path, layer)
            if source.op == "call_module" and type(self.fetch_attr(str(source.target))) is nn.Conv2d:
                return tuple(way.joined_by(norm) for way in ways)
            return tuple(way.through(norm) for way in ways)
        if kind in (nn.MaxPool2d, nn.AvgPool2d):
            return tuple(way.times(self._pooling(n, layer, size)) for way in ways)
        slope = _slope(layer)
        if slope is None:
            raise self._unknown(n, kind.__name__)
        return tuple(way.times(slope) for way in ways)

    def _through_function(self, n: fx.Node, value: Tensor) -> Ways:
        operands = (*n.args, *n.kwargs.values())
        reached = [operand for operand in operands if isinstance(operand, fx.Node) and self.ways[operand]]
        sources = [self.ways[node] for node in reached]
        numbers = [operand for operand in operands if isinstance(operand, (int, float))]
        target = n.target
        if target in _SUMS and "alpha" not in n.kwargs:
            # A smaller operand is repeated, and m copies of a vector are sqrt(m) times as long.
            copies = [math.sqrt(value.numel() / self.elements[node]) for node in reached]
            return tuple(way.times(m) for ways, m in zip(sources, copies, strict=True) for way in ways)
        if target in _PRODUCTS and len(sources) == 1 and len(numbers) == 1:
            return tuple(way.times(numbers[0]) for way in sources[0])
        if len(sources) != 1:
            raise self._unknown(n, _name(target))
        if target is operator.getitem and _is_slice(n.args[1]):
            return sources[0]
        if target is F.pad and n.kwargs.get("mode", "constant") == "constant":
            return sources[0]
        slope = _SLOPES.get(target)
        if slope is None:
            raise self._unknown(n, _name(target))
        return tuple(way.times(slope) for way in sources[0])

    def _pooling(self, n: fx.Node, layer: nn.MaxPool2d | nn.AvgPool2d, size: torch.Size) -> float:
        """Each input is in at most ceil(k/s) windows per direction; an average divides by the window's pixels."""
        sides = [_twice(layer.kernel_size), _twice(layer.stride), _twice(layer.padding)]
        windows = math.prod(math.ceil(k / s) for k, s in zip(sides[0], sides[1], strict=True))
        if isinstance(layer, nn.MaxPool2d):
            if _twice(layer.dilation) != (1, 1):
                raise self._unknown(n, "MaxPool2d with dilation")
            return math.sqrt(windows)
        if layer.divisor_override is not None:
            raise self._unknown(n, "AvgPool2d with a divisor of its own")
        whole = all((m - k) % s == 0 for m, k, s in zip(size, sides[0], sides[1], strict=True))
        # A window over the edge may hold one pixel, whose weight is then 1.
        return math.sqrt(windows / math.prod(sides[0]) if whole and sides[2] == (0, 0) else windows)

    def _unknown(self, n: fx.Node, what: str) -> StabilityError:
        stack = [str(path) for path, _ in n.meta.get("nn_module_stack", {}).values()]
        where = str(n.target) if n.op == "call_module" else (stack[-1] if stack else "")
        path = f"{self.path}.{where}" if where else self.path
        return StabilityError(f"{path}: the norm of {what} cannot be computed; {_ADVICE}")


def _slope(layer: nn.Module) -> float | None:
    if isinstance(layer, nn.LeakyReLU):
        return max(1.0, abs(layer.negative_slope))
    if isinstance(layer, nn.ELU):
        return max(1.0, abs(layer.alpha))
    return _SLOPES.get(type(layer))


def _name(target: object) -> str:
    return getattr(target, "__name__", str(target))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        value = tuple(value.values())
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def _is_slice(index) -> bool:
    """Plain slices pick each element at most once; a list of indices may not."""
    entries = index if isinstance(index, tuple) else (index,)
    return all(isinstance(entry, (slice, int)) or entry in (None, Ellipsis) for entry in entries)


def _twice(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
