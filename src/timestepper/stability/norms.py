"""Norms of many layers at once: layers of one shape go through power iteration together."""

from collections.abc import Iterable
from dataclasses import dataclass

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


def layer_norms(layers: Iterable[Operator], parameters: Parameters, tolerance: float = 1e-4) -> dict[Operator, Norm]:
    """All three figures of every layer."""
    found: dict[Operator, Norm] = {}
    for group, weights, scales in _stacks(layers, parameters):
        geometry = group[0].geometry
        estimates, _ = spectral.operator_norms(weights, geometry, tolerance=tolerance)
        upper = spectral.upper_bounds(weights, geometry, estimates)
        reshaped = spectral.reshaped_norms(weights, geometry.groups)
        figures = (torch.stack([estimates, upper, reshaped], 1).double() * scales[:, None]).tolist()
        found |= {layer: Norm(*figure) for layer, figure in zip(group, figures, strict=True)}
    return found


def warm_estimates(
    layers: Iterable[Operator], parameters: Parameters, warm: list[Tensor], iterations: int, first: int
) -> dict[Operator, float]:
    """Power iteration alone, a few rounds from where it last stopped; the first call does ``first`` rounds.

    ``warm`` holds the vectors of each stack of layers at which it stopped; empty, it is filled. The device is waited
    for once, at the end.
    """
    stacks = _stacks(layers, parameters)
    starts: list[Tensor | None] = [*warm] if len(warm) == len(stacks) else [None] * len(stacks)
    warm.clear()
    names: list[Operator] = []
    norms: list[Tensor] = []
    for (group, weights, scales), start in zip(stacks, starts, strict=True):
        rounds = first if start is None else iterations
        found, stopped = spectral.operator_norms(
            weights, group[0].geometry, None if start is None else start.to(weights), iterations=rounds, tolerance=None
        )
        warm.append(stopped)
        names += group
        norms.append(found.double() * scales)
    return dict(zip(names, torch.cat(norms).tolist(), strict=True))


def _stacks(layers: Iterable[Operator], parameters: Parameters) -> list[tuple[tuple[Operator, ...], Tensor, Tensor]]:
    """Layers of one kernel shape and geometry, each kind with its weights stacked, near one, and their scales."""
    groups: dict[tuple, list[tuple[Operator, Tensor]]] = {}
    for layer in dict.fromkeys(layers):
        weight = layer.weight(parameters)
        groups.setdefault((weight.shape, layer.geometry), []).append((layer, weight))
    return [
        (tuple(layer for layer, _ in members), *_near_one(torch.stack([weight for _, weight in members])))
        for members in groups.values()
    ]


def _near_one(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights whose largest is about 1, with the powers of two that make them what they were, in double precision.

    Squares of very large weights are beyond all numbers. A power of two changes no other digit of any norm.
    """
    scales = torch.exp2(torch.frexp(weights.flatten(1).abs().amax(1)).exponent.double())
    return (weights.double() / scales.reshape(-1, *[1] * (weights.dim() - 1))).to(weights), scales
