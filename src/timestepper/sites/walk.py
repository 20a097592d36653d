"""From a sum back along its branch to the parameters that can take the step size: the rules of reparam.py, by function.

Rules go by function, not by class: any layer that computes ``weight * x`` has a per-channel scale, whatever its name.
What is found here is a candidate, which proof.py proves or refuses.
"""

from dataclasses import dataclass, field
from math import prod

from timestepper.reparam import Entry
from timestepper.sites.shapes import CUTS, MOVES, PASSES, REDUCES, came_from, cut, goes_to
from timestepper.sites.sources import (
    COLUMNS,
    CONVOLUTIONS,
    DIFFERENCES,
    JOINS,
    LAST,
    MATRICES,
    NAMES,
    PRODUCTS,
    QUOTIENTS,
    SIGNATURES,
    OtherDimension,
    Refused,
    argument,
    leaves,
    name_of,
    place_in,
    source_of,
)
from timestepper.sites.trace import SUMS, Node


@dataclass
class Trail:
    """Some channels of a tensor, on the way back."""

    node: Node
    user: Node  # where we came from
    dim: int
    begin: int  # of the step sizes that they take
    length: int
    row: int = 0  # of the first channel

    @property
    def channels(self) -> int:
        return self.node.shape[self.dim]

    @property
    def whole(self) -> bool:
        return self.row == 0 and self.length == self.channels


@dataclass
class Absorbed:
    """The parameters that the step size of a sum enters."""

    channels: int
    dim: int
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    readers: set[str] = field(default_factory=set)


class Walk:
    """The way back from one sum, with one choice of its dimension of channels."""

    def __init__(self, total: Node, branch: Node, dim: int, shared: set[tuple[str, str]]):
        self.branch, self.shared = branch, shared
        self.found = Absorbed(total.shape[dim], dim)
        self.length = 0  # how far it came
        self._ways = [Trail(branch, total, dim, 0, total.shape[dim])]

    def run(self) -> Absorbed:
        while self._ways:
            way = self._ways.pop()
            for user in way.node.users:
                if user is not way.user and not _untouched(way, user):
                    self._compensate(way, user)
            self.length += 1
            self._step(way)
        return self.found

    def _step(self, way: Trail) -> None:
        node = way.node
        if not node.live:
            raise Refused("its branch does not depend on the input")
        if node.name in MOVES | PASSES | REDUCES:
            dim = came_from(node, way.dim)
            if dim is None:
                raise Refused(f"its channels are split or merged by {node.name} behind the last layer")
            self._back(way, next(other for other in node.inputs if other.live), dim=dim)
        elif node.name in CUTS and (held := cut(node, way.dim)) is not None:
            self._back(way, node.inputs[0], row=way.row + held[0])
        elif node.name in SUMS | DIFFERENCES:
            self._sum(way)
        elif node.name in PRODUCTS | QUOTIENTS:
            self._product(way)
        elif node.name in JOINS:
            self._join(way)
        elif node.name in SIGNATURES:
            self._layer(way)
        else:
            raise Refused(f"its branch ends in {node.name}{_in(node)}")

    def _back(self, way: Trail, to: Node, **changed) -> None:
        self._ways.append(Trail(**{**vars(way), "node": to, "user": way.node, **changed}))

    def _sum(self, way: Trail) -> None:
        """A bias, or two branches that take the same step."""
        parts = [part for part in way.node.args[:2] if isinstance(part, Node)]
        live = [part for part in parts if part.live]
        if len(live) == 2 and (live[0].comes_from(live[1]) or live[1].comes_from(live[0])):
            if way.node.name in DIFFERENCES:
                raise Refused("its branch is a difference from the stream, F(x) - x, which no layer of F can scale")
            raise Refused("its branch ends in another residual sum")
        if len(parts) < 2:
            raise Refused("a constant is added behind the last layer of its branch")
        for part in parts:
            if part.live:
                self._back(way, part)
            else:
                self._enter(way, part, "bias", None)

    def _product(self, way: Trail) -> None:
        """A constant, a learned scale, or a gate."""
        parts = [part for part in way.node.args[:2] if isinstance(part, Node)]
        live = [part for part in parts if part.live]
        if len(live) == 2:
            # The gate is made of what it is multiplied with; of two that are not, one can take the step.
            gated = next((a for a, b in (live, live[::-1]) if b.comes_from(a)), None)
            gated = gated or max(live, key=lambda part: len(part.shape) and part.shape == way.node.shape)
            if gated.shape != way.node.shape:
                raise Refused("its branch ends in a product of two branches")
            self._back(way, gated)
            return
        scale = next((part for part in parts if not part.live), None)
        if scale is None or not leaves(scale) or not _along(scale, way):
            self._back(way, live[0])  # a number, or one that is the same for all channels
        elif way.node.name in QUOTIENTS:
            raise Refused(f"its branch ends in a division by {leaves(scale)[0].own_name}")
        else:
            try:
                self._enter(way, scale, "weight", None)
            except Refused:  # a sigmoid of a parameter, say: what it scales may take the step
                self._back(way, live[0])

    def _join(self, way: Trail) -> None:
        """A concatenation of channels: each part takes its piece."""
        parts = way.node.args[0] if way.node.args else way.node.kwargs["tensors"]
        along = way.node.kwargs.get("dim", way.node.args[1] if len(way.node.args) > 1 else 0) % len(way.node.shape)
        if way.node.name == "stack" or along != way.dim:
            for part in parts:
                self._back(way, part, dim=way.dim - (way.node.name == "stack" and along < way.dim))
            return
        place = 0
        for part in parts:
            size = part.shape[way.dim]
            first, end = max(way.row, place), min(way.row + way.length, place + size)
            if first < end:
                begin = way.begin + first - way.row
                self._back(way, part, begin=begin, length=end - first, row=first - place)
            place += size

    def _layer(self, way: Trail) -> None:
        node = way.node
        dims = len(node.shape)
        if node.name == "addcmul":
            channel = way.dim
        elif node.name in LAST:
            channel = dims - 1
        else:
            channel = dims - 1 - int(node.name[-2]) if node.name in CONVOLUTIONS else 1
        if way.dim != channel or (node.name in LAST and self._turned):
            raise OtherDimension(
                f"{node.module} ({node.name}) would take one step for every token, not for every channel"
            )
        names = NAMES.get(node.name, ("weight", "bias"))
        weight, bias = (argument(node, name) for name in names)
        if weight is None:
            raise Refused(f"{node.module} ({node.name}) has no weight of its own")
        if weight.live:
            raise Refused(f"{node.module} ({node.name}) computes its weight from the input")
        dimension = None if node.name == "addcmul" else int(node.name in COLUMNS)
        self._enter(way, weight, "weight", dimension)
        if bias is not None:
            self._enter(way, bias, "bias", None if node.name in ("addmm", "addcmul") else 0)

    @property
    def _turned(self) -> bool:
        """Whether what was last comes second of three: tokens, where the stream's channels are last."""
        return len(self.branch.shape) == 3 and self.found.dim == 1

    # -- parameters ----------------------------------------------------------------------------------------------------

    def _enter(self, way: Trail, value: Node, role: str, dimension: int | None, divide: bool = False) -> None:
        """Let the step size into the parameter that a weight or bias is computed from."""
        parameter, offset = source_of(value, role)
        if dimension is None:  # a vector, however it is written
            dimension = next((i for i, n in enumerate(parameter.shape) if n == prod(parameter.shape)), 0)
        else:
            dimension = place_in(parameter, value, dimension)
        if dimension is None or dimension >= len(parameter.shape) or parameter.shape[dimension] != way.channels:
            raise Refused(f"{name_of(parameter)} is not one number for every channel")
        key = parameter.owner, parameter.own_name
        if key in self.shared:
            raise Refused(f"{name_of(parameter)} is shared with another layer; give each its own")
        if not parameter.owner:
            raise Refused(f"{name_of(parameter)} belongs to the network itself; put it into a module of its own")
        self._find_readers(parameter)
        entry = Entry(*key, dimension=dimension, divide=divide, offset=offset)
        if not way.whole or way.length != self.found.channels:
            entry = entry._replace(begin=way.begin, length=way.length, row=way.row)
        if self.found.entries.setdefault(key, entry) != entry:
            raise Refused(f"{name_of(parameter)} would take two different steps")

    def _find_readers(self, parameter: Node) -> None:
        """Modules that read the parameters of a child which they do not call."""
        for user in parameter.users:
            if parameter.owner in user.running:
                continue
            if parameter.owner.rpartition(".")[0] != user.module:
                raise Refused(f"{name_of(parameter)} is read by {user.module or 'the network'}, from outside its layer")
            self.found.readers.add(user.module)

    # -- what else sees the scaled channels ----------------------------------------------------------------------------

    def _compensate(self, way: Trail, user: Node) -> None:
        """A gate sees what it saw if its first layer's input columns are divided by the step sizes."""
        ways = [(way.node, user, way.dim)]
        while ways:
            before, node, dim = ways.pop()
            if node is not self.branch and not self.branch.comes_from(node):
                raise Refused(f"the end of its branch ({before.name}{_in(before)}) is used elsewhere too")
            if node.name in MOVES | PASSES | REDUCES and (moved := goes_to(node, dim)) is not None:
                ways += [(node, after, moved) for after in node.users]
                continue
            self._divide(way, before, node, dim)

    def _divide(self, way: Trail, before: Node, node: Node, dim: int) -> None:
        weight = argument(node, "weight") if node.name in MATRICES else None
        channel = len(before.shape) - (1 + int(node.name[-2]) if node.name in CONVOLUTIONS else 1)
        if weight is None or weight.live or argument(node, "input") is not before or dim != channel or not way.whole:
            raise Refused(f"a gate that is no squeeze-excite ({node.name}{_in(node)}) follows the last layer")
        # A depthwise kernel has one input in each row.
        dimension = 0 if node.name in COLUMNS or (weight.shape[1] == 1 and way.channels == weight.shape[0]) else 1
        if weight.shape[dimension] != way.channels:
            raise Refused(f"a grouped layer ({node.module}) sees the end of its branch")
        if weight.name != "parameter":
            raise Refused(f"{node.module} computes its weight from other parameters")
        self._enter(way, weight, "weight", dimension, divide=True)


def _along(scale: Node, way: Trail) -> bool:
    """Whether a scale differs between channels."""
    place = way.dim - len(way.node.shape)
    return len(scale.shape) >= -place and scale.shape[place] > 1


def _untouched(way: Trail, user: Node) -> bool:
    """Whether another user takes only channels that have no step."""
    if user.name not in CUTS or (held := cut(user, way.dim)) is None:
        return False
    first, length = held
    return first >= way.row + way.length or first + length <= way.row


def _in(node: Node) -> str:
    return f" in {node.module}" if node.module else ""
