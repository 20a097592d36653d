"""Norms of many layers at once: layers of one shape go through power iteration together."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from timestepper.stability import spectral
from timestepper.stability.operators import Operator, Parameters


@dataclass(frozen=True)
class Norm:
    """One layer's norm: power iteration's (from below), a number it cannot exceed, and the reshaped kernel's."""

    estimate: float
    upper: float
    reshaped: float


@dataclass
class WarmStart:
    """The vectors at which power iteration stopped, so that the next call, on weights a little older, starts there."""

    vectors: dict[tuple[Operator, ...], Tensor] = field(default_factory=dict)


def layer_norms(layers: Iterable[Operator], parameters: Parameters, tolerance: float = 1e-4) -> dict[Operator, Norm]:
    """All three figures of every layer."""
    found: dict[Operator, Norm] = {}
    for group, weights in _stacks(layers, parameters):
        geometry = group[0].geometry
        estimates, _ = spectral.operator_norms(weights, geometry, tolerance=tolerance)
        upper = spectral.upper_bounds(weights, geometry, estimates)
        reshaped = spectral.reshaped_norms(weights, geometry.groups)
        figures = torch.stack([estimates, upper, reshaped], 1).tolist()
        found |= {layer: Norm(*figure) for layer, figure in zip(group, figures, strict=True)}
    return found


def warm_estimates(
    layers: Iterable[Operator], parameters: Parameters, warm: WarmStart, iterations: int, first: int
) -> dict[Operator, float]:
    """Power iteration alone, a few rounds from where it last stopped; the first call does ``first`` rounds.

    The device is waited for once, at the end.
    """
    names: list[Operator] = []
    norms: list[Tensor] = []
    for group, weights in _stacks(layers, parameters):
        start = warm.vectors.get(group)
        rounds = first if start is None else iterations
        found, warm.vectors[group] = spectral.operator_norms(
            weights, group[0].geometry, start, iterations=rounds, tolerance=None
        )
        names += group
        norms.append(found)
    return dict(zip(names, torch.cat(norms).tolist(), strict=True))


def _stacks(layers: Iterable[Operator], parameters: Parameters) -> list[tuple[tuple[Operator, ...], Tensor]]:
    """Layers of one kernel shape and geometry, each kind with its weights stacked."""
    groups: dict[tuple, list[tuple[Operator, Tensor]]] = {}
    for layer in dict.fromkeys(layers):
        weight = layer.weight(parameters)
        groups.setdefault((weight.shape, layer.geometry), []).append((layer, weight))
    return [
        (tuple(layer for layer, _ in members), torch.stack([weight for _, weight in members]))
        for members in groups.values()
    ]
