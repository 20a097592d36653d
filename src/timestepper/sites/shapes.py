"""Where a dimension of a tensor comes from: functions that move numbers about and leave each as it is, or scale it."""

from collections.abc import Callable
from math import prod
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map

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
    """Which channels of its input a part holds: (first, how many); None of a function that takes no plain part."""
    before = node.inputs[0]
    if node.name == "__getitem__":
        index = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
        index = tuple(_spread(index, len(before.shape)))
        if len(index) <= dim:
            return 0, before.shape[dim]
        if any(not isinstance(part, slice) for part in index):
            return None
        first, end, step = index[dim].indices(before.shape[dim])
        return (first, max(0, end - first)) if step == 1 else None
    if node.name == "narrow":
        along, first, length = _numbers(node)
        return (first, length) if along % len(before.shape) == dim else (0, before.shape[dim])
    if node.name in ("chunk", "split", "tensor_split", "split_with_sizes"):
        along = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0) % len(before.shape)
        if along != dim:
            return 0, before.shape[dim]
        parts = [user for user in before.users if user.args is node.args]
        return sum(part.shape[dim] for part in parts if part.part < node.part), node.shape[dim]
    return None


CUTS = {"__getitem__", "narrow", "chunk", "split", "tensor_split", "split_with_sizes"}


def _spread(index: tuple, dims: int) -> list:
    """Without the ellipsis."""
    place = next((i for i, part in enumerate(index) if part is Ellipsis), None)
    if place is None:
        return list(index)
    return [*index[:place], *[slice(None)] * (dims - len(index) + 1), *index[place + 1 :]]


def _numbers(node: Node) -> list[int]:
    """The whole numbers among a function's arguments: its dimensions."""
    values = [*node.args[1:], *(value for key, value in node.kwargs.items() if key not in ("keepdim", "dtype"))]
    flat = [n for value in values for n in (value if isinstance(value, list | tuple) else [value])]
    return [n for n in flat if isinstance(n, int) and not isinstance(n, bool)]
