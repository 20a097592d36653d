"""Where a dimension of a tensor comes from: functions that move numbers about and leave each as it is, or scale it."""

from collections.abc import Callable
from math import prod
from typing import Any, cast

import torch
from torch.utils._pytree import tree_leaves, tree_map

from timestepper.sites.trace import Node

MOVES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "ravel"}
MOVES |= {"permute", "transpose", "swapaxes", "swapdims", "transpose_", "movedim", "moveaxis"}
MOVES |= {"t", "T", "mT", "adjoint", "mH", "H"}
CASTS = {"to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "clone", "requires_grad_"}
# Linear, one channel at a time: a step size passes through them.
PASSES = CASTS | {"dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "dropout_", "native_dropout"}
PASSES |= {"roll", "flip", "pad", "interpolate", "upsample", "masked_fill", "masked_fill_", "expand", "repeat", "neg"}
PASSES |= {f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)} | {"index_select", "__neg__"}
REDUCES = {"mean", "sum"}


def came_from(node: Node, dim: int) -> int | None:
    """The dimension of the node's first live input that ``dim`` of the node is; None where it was split or merged."""
    before = next((other for other in node.inputs if other.live), node.inputs[0])
    size = len(before.shape)
    if node.name in MOVES:
        return _moved(node, before, dim)
    if node.name in REDUCES:
        gone = {index % size for index in _numbers(node)}
        kept = [index for index in range(size) if index not in gone]
        before_dim = dim if len(node.shape) == size else kept[dim]
        return before_dim if before_dim in kept else None
    return dim if size == len(node.shape) else None


def _moved(node: Node, before: Node, dim: int) -> int | None:
    """By its stride, where the function is called once more with tensors that have a shape and no numbers."""
    args, kwargs = tree_map(_without_numbers, (node.args, node.kwargs))
    try:
        stride = cast(Callable, node.function)(*args, **kwargs).stride(dim)
    except RuntimeError:  # it looks at the numbers as another type
        return None
    strides = [prod(before.shape[index + 1 :]) for index in range(len(before.shape))]
    return next((i for i, n in enumerate(before.shape) if n == node.shape[dim] and strides[i] == stride), None)


def _without_numbers(value: Any) -> Any:
    return torch.empty(value.shape, device="meta") if isinstance(value, Node) else value


def goes_to(node: Node, dim: int) -> int | None:
    """The dimension of the node that ``dim`` of its input becomes."""
    return next((index for index in range(len(node.shape)) if came_from(node, index) == dim), None)


def cut(node: Node, dim: int) -> tuple[int, int] | None:
    """Which channels of its input a part holds: (first, how many); None of a function that takes no plain part.

    The function is called once more, with the numbers of the channels in place of the feature.
    """
    before = node.inputs[0]
    shape = [-1 if index == dim else 1 for index in range(len(before.shape))]
    numbers = torch.arange(before.shape[dim]).reshape(shape).expand(before.shape)
    args, kwargs = tree_map(lambda value: numbers if value is before else value, (node.args, node.kwargs))
    try:
        held = tree_leaves(cast(Callable, node.function)(*args, **kwargs))[node.part]
    except (TypeError, IndexError):  # it is told which ones by another tensor
        return None
    if held.dim() != numbers.dim():
        return None
    found = held[tuple(slice(None) if index == dim else 0 for index in range(held.dim()))].tolist()
    first = found[0] if found else 0
    return (first, len(found)) if found == list(range(first, first + len(found))) else None


CUTS = {"__getitem__", "narrow", "chunk", "split", "tensor_split", "split_with_sizes"}


def _numbers(node: Node) -> list[int]:
    """The whole numbers among a function's arguments: its dimensions."""
    values = [*node.args[1:], *(value for key, value in node.kwargs.items() if key not in ("keepdim", "dtype"))]
    flat = [n for value in values for n in (value if isinstance(value, list | tuple) else [value])]
    return [n for n in flat if isinstance(n, int) and not isinstance(n, bool)]
