"""Step sizes into parameters: the whole method is one function from trained to effective parameters.

the branch ends in              parameters that the branch runs with
batch norm (weight a, bias b)   a*dt, b*dt
... then a squeeze-excite gate  and the gate's first layer's input columns divided by dt: pooling is linear, so the
                                gate sees what it saw
convolution, linear layer       output rows W[c]*dt[c], bias*dt
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from timestepper.controllers.base import at_least_float32
from timestepper.errors import UnsupportedSiteError

# Layers that are linear per output channel. Exact classes: a subclass may hide an activation.
_ROW_LAYERS = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Linear,
)
_COLUMN_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class Entry:
    """One parameter that a step size enters: its rows are multiplied, or its columns divided."""

    parameter: str
    columns: bool = False

    def apply(self, parameter: Tensor, step_size: Tensor) -> Tensor:
        """In float32 or better, cast once; so attached and folded networks hold the same bits."""
        precise = at_least_float32(parameter)
        if self.columns:
            scaled = precise / step_size.reshape(1, -1, *[1] * (parameter.dim() - 2))
        else:
            scaled = precise * step_size.reshape(-1, *[1] * (parameter.dim() - 1))
        return scaled.to(parameter.dtype)


def entries(model: nn.Module, last: tuple[str, ...], gate: str | None) -> tuple[Entry, ...]:
    """The parameters that the step size of one site enters; fails loudly for a layer that the table does not hold."""
    found = []
    for path in last:
        layer = model.get_submodule(path)
        own = layer._parameters
        if type(layer) not in _ROW_LAYERS or own.get("weight") is None:
            raise UnsupportedSiteError(_unsupported(path, layer, "the branch ends in", _ROW_LAYERS))
        found += [Entry(f"{path}.{name}") for name in ("weight", "bias") if own.get(name) is not None]
    if gate is not None:
        layer = model.get_submodule(gate)
        own = layer._parameters
        if type(layer) not in _COLUMN_LAYERS or getattr(layer, "groups", 1) != 1 or own.get("weight") is None:
            raise UnsupportedSiteError(_unsupported(gate, layer, "the gate starts with", _COLUMN_LAYERS))
        found.append(Entry(f"{gate}.weight", columns=True))
    return tuple(found)


def refuse_shared(model: nn.Module, sites: list[tuple[Entry, ...]]) -> None:
    """A parameter that several layers share cannot be folded: the others would be multiplied too.

    One that is named twice, by nested blocks say, would run with one of its step sizes and without the other.
    """
    owners = Counter(id(parameter) for module in model.modules() for parameter in module._parameters.values())
    entering = [(entry.parameter, id(model.get_parameter(entry.parameter))) for site in sites for entry in site]
    named = Counter(parameter for _, parameter in entering)
    for path, parameter in entering:
        if owners[parameter] > 1:
            raise UnsupportedSiteError(
                f"{path} is shared with another layer, which its step size would change too; "
                "give each layer its own, or use the same block in both places"
            )
        if named[parameter] > 1:
            raise UnsupportedSiteError(
                f"{path} is named more than once to take a step size, and can take one; give each branch a last layer "
                "of its own, or let the adapter of one block return None"
            )


def effective(
    parameters: Mapping[str, Tensor], sites: list[tuple[Entry, ...]], step_sizes: list[Tensor]
) -> dict[str, Tensor]:
    """Effective parameters of all sites: one step size vector per site, in the same order."""
    return {
        entry.parameter: entry.apply(parameters[entry.parameter], step_size)
        for site, step_size in zip(sites, step_sizes, strict=True)
        for entry in site
    }


def _unsupported(path: str, layer: nn.Module, role: str, supported: tuple[type, ...]) -> str:
    names = ", ".join(kind.__name__ for kind in supported)
    return (
        f"{path}: {role} {type(layer).__name__}, which cannot take a step size into its parameters; "
        f"supported are {names} with their own (affine, not parametrised) weight"
    )
