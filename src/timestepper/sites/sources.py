"""What functions take as weight and bias, and which parameters these are computed from."""

from timestepper.sites.shapes import CASTS, MOVES, came_from
from timestepper.sites.trace import SUMS, Node

PRODUCTS = {"mul", "__mul__", "__rmul__", "mul_", "__imul__", "multiply"}
QUOTIENTS = {"div", "__truediv__", "div_", "__itruediv__", "true_divide"}
DIFFERENCES = {"sub", "__sub__", "sub_", "__isub__", "subtract"}
CONVOLUTIONS = {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)}
JOINS = {"cat", "concat", "concatenate", "stack"}
# Where a function has its weight and its bias among its arguments.
SIGNATURES = {
    "linear": ("input", "weight", "bias"),
    **dict.fromkeys(CONVOLUTIONS, ("input", "weight", "bias")),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "instance_norm": ("input", "running_mean", "running_var", "weight", "bias"),
    "group_norm": ("input", "num_groups", "weight", "bias"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias"),
    "rms_norm": ("input", "normalized_shape", "weight"),
    "addmm": ("bias", "input", "weight"),
    "addcmul": ("bias", "weight", "input"),
    "matmul": ("input", "weight"),
    "__matmul__": ("input", "weight"),
    "multi_head_attention_forward": (*"0123456789", "dropout_p", "out_proj_weight", "out_proj_bias"),
}
NAMES = {"multi_head_attention_forward": ("out_proj_weight", "out_proj_bias")}
COLUMNS = {"addmm", "matmul", "__matmul__", *(name for name in CONVOLUTIONS if "transpose" in name)}  # inputs first
MATRICES = CONVOLUTIONS | {"linear", "addmm", "matmul", "__matmul__", "multi_head_attention_forward"}
LAST = {"linear", "addmm", "matmul", "__matmul__", "layer_norm", "rms_norm", "multi_head_attention_forward"}


class Refused(Exception):
    """Why a sum has no step size."""


class OtherDimension(Refused):
    """The dimension that was tried is not the one of the channels."""


def argument(node: Node, name: str) -> Node | None:
    """A tensor among a function's arguments, by its name."""
    if name in node.kwargs:
        return node.kwargs[name]
    names = SIGNATURES[node.name]
    place = names.index(name) if name in names else len(node.args)
    return node.args[place] if place < len(node.args) else None


def matrix_of(node: Node) -> Node | None:
    """The weight of a convolution or linear layer; None where the function is none, or multiplies two features."""
    if node.name not in MATRICES:
        return None
    weight = argument(node, NAMES.get(node.name, ("weight", ""))[0])
    return weight if weight is not None and not weight.live else None


def leaves(node: Node) -> list[Node]:
    """The parameters and buffers that a value is computed from, in order."""
    found, ways, seen = [], [node], set()
    while ways:
        now = ways.pop()
        if now.number not in seen:
            seen.add(now.number)
            ways += now.inputs
            if now.name == "parameter":
                found.append(now)
    return sorted(found, key=lambda leaf: leaf.number)


def source_of(value: Node, role: str) -> tuple[Node, float]:
    """The parameter that scales a value, and what is added to it first: RMS norms may compute with ``1 + w``."""
    sources = leaves(value)
    if not sources:
        raise Refused(f"the {role} at the end of its branch is no parameter")
    if len(sources) > 1:
        chosen = [leaf for name in ("gain", role) for leaf in sources if leaf.own_name == name]
        if not chosen or len({leaf.owner for leaf in sources}) > 1:
            raise Refused(f"the {role} of {sources[0].owner} is computed from {len(sources)} parameters")
        return chosen[0], 0.0
    offset, now = 0.0, value
    while now is not sources[0]:
        number = next((arg for arg in now.args if isinstance(arg, int | float)), None)
        if now.name in SUMS and number is not None:
            offset += float(number)
        elif now.name not in MOVES | CASTS and not (now.name in PRODUCTS and number is not None and not offset):
            raise Refused(f"{name_of(sources[0])} is used through {now.name}, not as it is")
        now = now.inputs[0]
    return sources[0], offset


def place_in(parameter: Node, value: Node, dimension: int) -> int | None:
    """Which dimension of a parameter is ``dimension`` of what is computed from it: ``x @ weight.T`` has it turned."""
    while value is not parameter and value.inputs:
        if value.name in MOVES:
            place = came_from(value, dimension)
            if place is None:
                return None
            dimension = place
        value = value.inputs[0]
    return dimension


def name_of(parameter: Node) -> str:
    return f"{parameter.owner}.{parameter.own_name}".lstrip(".")
