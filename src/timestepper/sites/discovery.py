"""The residual sums of a network and the sites that they make, from the graph of one forward."""

from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import cast

from torch import Tensor, nn

from timestepper.reparam import Entry
from timestepper.sites.known import Site
from timestepper.sites.proof import Candidate, Sum
from timestepper.sites.shapes import CUTS, MOVES, PASSES, REDUCES, cut
from timestepper.sites.sources import (
    COLUMNS,
    CONVOLUTIONS,
    DIFFERENCES,
    JOINS,
    PRODUCTS,
    QUOTIENTS,
    OtherDimension,
    Refused,
    leaves,
    matrix_of,
    place_in,
)
from timestepper.sites.trace import SUMS, Node, Trace
from timestepper.sites.walk import Absorbed, Walk

_LINEAR = MOVES | PASSES | REDUCES | CUTS | SUMS | DIFFERENCES | JOINS | CONVOLUTIONS
_LINEAR |= {"linear", "addmm", "addcmul", "batch_norm", "max_pool2d", "constant"}


@dataclass(frozen=True)
class NotTaken:
    """A sum without a step size. ``residual`` says whether it is one of the kind that could have one."""

    path: str
    reason: str
    residual: bool


@dataclass
class _Branch:
    """A sum with its branch and what the branch computes."""

    total: Node
    base: Node  # from where branch and shortcut part
    branch: Node
    between: list[Node]  # from there to the branch's end


class _NoResidual(Exception):
    """A sum of another kind."""


def candidates(trace: Trace, net: nn.Module) -> tuple[list[Candidate], list[NotTaken]]:
    """Sites that the walk found, one for each branch, and the sums that it did not take."""
    found: list[tuple[_Branch, Absorbed]] = []
    refused: list[NotTaken] = []
    starts: dict[Node, Node] = {}  # of residual sums: where their shortcut begins
    for total in trace.sums:
        parts = total.args[:2]
        if not all(part.live and part.shape == total.shape for part in parts) or len(total.shape) < 2:
            continue  # a bias, a position, a mask
        try:
            branch = _branch_of(trace, total, starts)
            starts[total] = branch.base
            absorbed = _absorbed(branch, trace.shared, net)
            found.append((branch, absorbed))
        except _NoResidual as error:
            refused.append(NotTaken(total.module, str(error), residual=False))
        except Refused as error:
            pyramid = _joins_scales(branch)
            reason = f"it joins scales, over other residual sums; {error}" if pyramid else str(error)
            refused.append(NotTaken(total.module, reason, residual=not pyramid))
    taken, doubled = _apart(found)
    return _named(taken, net), refused + doubled


def _branch_of(trace: Trace, total: Node, starts: dict[Node, Node]) -> _Branch:
    """The branch is the operand that has the other among its ancestors, else the longer path.

    In ``x + attention(h) + mlp(h)`` the other is a residual sum itself, and both branches begin at its shortcut.
    """
    first, second = total.args[:2]
    if first is second:
        raise _NoResidual("a tensor is added to itself")
    if first.comes_from(second) or second.comes_from(first):
        branch, other = (first, second) if first.comes_from(second) else (second, first)
        base = other
    elif parallel := [
        (part, other)
        for part, other in ((first, second), (second, first))
        if other in starts and part not in starts and part.comes_from(starts[other])
    ]:
        ((branch, other),) = parallel
        base = starts[other]
    else:
        common = first.ancestors & second.ancestors
        shared = next((n for n in reversed(trace.nodes) if n.live and common >> n.number & 1), None)
        if shared is None:
            raise _NoResidual("its operands have nothing in common")
        base = shared
        paths = {part: _between(trace, base, part) for part in (first, second)}
        branch, other = sorted((first, second), key=lambda part: -len(paths[part]))
        if not all(map(_linear, paths[other])):
            raise _NoResidual("a sum of two branches, neither of which is a shortcut")
        if _from_other_channels(base, paths[first], paths[second]):
            raise _NoResidual("its operands are made of different channels of one feature")
    between = [node for node in _between(trace, base, branch) if not other.comes_from(node)]
    if not any(matrix_of(node) for node in between):
        raise _NoResidual("its branch has no convolution or linear layer")
    if not _described(between):
        raise _NoResidual("no layer in its branch has a weight of its own that a controller could read")
    if all(map(_linear, between)):
        raise _NoResidual(
            "its branch is linear: an adapter of low rank, part of one re-parameterised layer, or a position encoding"
        )
    return _Branch(total, base, branch, between)


def _between(trace: Trace, base: Node, end: Node) -> list[Node]:
    inside = trace.nodes[base.number + 1 : end.number]
    return [node for node in inside if end.comes_from(node) and node.comes_from(base)] + [end]


def _joins_scales(found: _Branch) -> bool:
    """Whether a sum with a projection spans other residual sums, as in a feature pyramid: that is no block."""
    first, second = found.total.args[:2]
    if first.comes_from(second) or second.comes_from(first):
        return False
    sums = (node.args[:2] for node in found.between if node.name in SUMS)
    pairs = [pair for pair in sums if all(isinstance(part, Node) and part.live for part in pair) and len(pair) == 2]
    return any(a.comes_from(b) or b.comes_from(a) for a, b in pairs)


def _from_other_channels(base: Node, *paths: list[Node]) -> bool:
    """Whether two paths begin with different parts of a feature, as the groups inside a block of Res2Net do."""
    taken: list[set[int]] = []
    for path in paths:
        starts = [node for node in path if base in node.inputs]
        parts = [cut(node, 1) if node.name in CUTS else None for node in starts]
        if None in parts or not parts:
            return False
        taken.append({channel for first, length in parts for channel in range(first, first + length)})  # type: ignore[misc]
    return not taken[0] & taken[1]


def _linear(node: Node) -> bool:
    live = sum(other.live for other in node.inputs)
    if node.name in PRODUCTS | QUOTIENTS | {"matmul", "__matmul__"}:
        return live < 2
    return node.name in _LINEAR


def _absorbed(found: _Branch, shared: set[tuple[str, str]], net: nn.Module) -> Absorbed:
    """Channels are the second or the last dimension."""
    dims = len(found.total.shape)
    reasons = []
    for dim in dict.fromkeys((1, dims - 1)):
        walk = Walk(found.total, found.branch, dim, shared)
        try:
            absorbed = walk.run()
            absorbed.readers |= _fast_paths(absorbed, net)
            if absorbed.readers & {layer for layer, _ in absorbed.entries}:
                raise Refused("a module reads the weights of a layer inside it and takes a step itself")
            return absorbed
        except Refused as reason:
            reasons.append((not isinstance(reason, OtherDimension), walk.length, reason))
    raise max(reasons, key=lambda reason: reason[:2])[2]  # of the dimension that got further


def _fast_paths(absorbed: Absorbed, net: nn.Module) -> set[str]:
    """torch's encoder layer reads the weights of all its layers, where nobody watches it."""
    paths = {layer.rsplit(".", n)[0] for layer, _ in absorbed.entries for n in (1, 2) if layer.count(".") >= n}
    return {path for path in paths if isinstance(net.get_submodule(path), nn.TransformerEncoderLayer)}


def _apart(found: list[tuple[_Branch, Absorbed]]) -> tuple[list[list[tuple[_Branch, Absorbed]]], list[NotTaken]]:
    """Sums of one block that runs several times are one site; branches that share only their end are refused."""
    sites: dict[tuple, list[tuple[_Branch, Absorbed]]] = {}
    for branch, absorbed in found:
        key = tuple(absorbed.entries.values()), tuple(_described(branch.between))
        sites.setdefault(key, []).append((branch, absorbed))
    takers = Counter((entry.layer, entry.name) for entries, _ in sites for entry in entries)
    taken, refused = [], []
    for (entries, _), members in sites.items():
        double = next((entry for entry in entries if takers[entry.layer, entry.name] > 1), None)
        if double is None:
            taken.append(members)
        else:
            reason = f"{double.parameter} is shared with another branch; give each a last layer of its own"
            refused += [NotTaken(branch.total.module, reason, residual=True) for branch, _ in members]
    return taken, refused


def _described(between: list[Node]) -> dict[str, tuple[int, ...]]:
    """The layers whose weights describe a branch, each with the dimensions that are averaged over."""
    found: dict[str, tuple[int, ...]] = {}
    for node in between:
        if (weight := matrix_of(node)) is None:
            continue
        for leaf in leaves(weight):
            if leaf.own_name == "weight" and len(leaf.shape) > 1 and leaf.owner:
                inputs = place_in(leaf, weight, 0 if node.name in COLUMNS else 1)
                depthwise = leaf.shape[1] == 1 and len(leaf.shape) > 2
                found[leaf.owner] = tuple(range(1, len(leaf.shape))) if depthwise and inputs else (inputs or 0,)
    return found


def _named(taken: list[list[tuple[_Branch, Absorbed]]], net: nn.Module) -> list[Candidate]:
    """By the module that has the sum, and where it has several, by the part of it that ends the branch too."""
    homes = [members[0][0].total.module for members in taken]
    found: list[Candidate] = []
    for members, home in zip(taken, homes, strict=True):
        branch, absorbed = members[0]
        path = home
        if homes.count(home) > 1 or not home:
            last = next(iter(absorbed.entries.values()))
            inside = last.parameter.removeprefix(f"{home}.") if home else last.parameter
            path = f"{home}.{inside.partition('.')[0]}".lstrip(".") if inside != last.parameter else last.layer
        while path in [other.site.path for other in found]:
            path += "'"
        sums = tuple(
            Sum(b.total.key, next(i for i, part in enumerate(b.total.args[:2]) if part is b.branch), a.dim)
            for b, a in members
        )
        found.append(Candidate(_site(path, branch, absorbed, net), sums))
    return found


def _site(path: str, branch: _Branch, absorbed: Absorbed, net: nn.Module) -> Site:
    entries: tuple[Entry, ...] = tuple(absorbed.entries.values())
    described = _described(branch.between)
    lengths = [length(net, layer, averaged) for layer, averaged in described.items()]
    last = tuple(dict.fromkeys(entry.layer for entry in entries if not entry.divide))
    gate = next((entry.layer for entry in entries if entry.divide), None)
    return Site(
        path=path,
        channels=absorbed.channels,
        descriptor=sum(lengths),
        convs=tuple(described),
        last=last,
        gate=gate,
        reduction=8,
        readers=tuple(sorted(absorbed.readers)),
        entries=entries,
        means=tuple(described.values()),
    )


def length(net: nn.Module, layer: str, averaged: tuple[int, ...]) -> int:
    """What a layer adds to the descriptor of its site."""
    shape = cast(Tensor, net.get_submodule(layer).weight).shape
    return prod(size for dimension, size in enumerate(shape) if dimension not in averaged)
