"""Proposition 1 with the real operators of every block: how much a perturbation of y_0 can have grown in y_D."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from timestepper.equations import log_perturbation_bound
from timestepper.sites import Site
from timestepper.stability.chain import Chain, Link, full_precision
from timestepper.stability.lipschitz import Ways, ways_through
from timestepper.stability.norms import Norm, layer_norms
from timestepper.stability.operators import Operator, parameters_of


@dataclass(frozen=True)
class BlockBound:
    """One factor of Eq. 7. ``branch`` is the norm of diag(dt) times the branch, ``shortcut`` that of the shortcut.

    The logarithms are of shortcut + branch: with converged norms, with norms that are certainly not too small, and
    with the reshaped kernels' norms.
    """

    stage: str
    path: str
    branch: float
    shortcut: float
    log: float
    log_certified: float
    log_reshaped: float
    layers: Mapping[str, Norm]


@dataclass(frozen=True)
class Bound:
    """Proposition 1 of a network, in logarithms: 506 layers do not overflow. ``stages``: the part of each."""

    blocks: tuple[BlockBound, ...]
    log: float
    log_certified: float
    log_reshaped: float
    stages: dict[str, float]


@full_precision()
def proposition_1(chain: Chain, tolerance: float = 1e-4) -> Bound:
    """The bound of every block, from the norms of all its layers on features of their real size.

    ``tolerance`` is power iteration's: a norm counts as converged when ten rounds raise it by less.
    """
    ways = block_ways(chain)
    norms = layer_norms(layers_on(ways), parameters_of(chain.model), tolerance)
    blocks = tuple(_block(link, through, norms) for link, through in zip(chain.links, ways, strict=True))
    return Bound(
        blocks,
        log=sum(block.log for block in blocks),
        log_certified=sum(block.log_certified for block in blocks),
        log_reshaped=sum(block.log_reshaped for block in blocks),
        stages=by_stage([(block.stage, block.log) for block in blocks]),
    )


def block_ways(chain: Chain) -> list[Ways]:
    """The ways through each block."""
    return [ways_through(link, features) for link, features in zip(chain.links, chain.features, strict=False)]


def layers_on(ways: list[Ways]) -> list[Operator]:
    return [layer for through in ways for way in through for layer in way.layers]


def split(site: Site, ways: Ways, norm: Callable[[Operator], float]) -> tuple[float, float]:
    """(shortcut, branch): sums over the ways past and through the layers that take the step size."""
    sums = [0.0, 0.0]
    for way in ways:
        stepped = any(layer.path in site.last or layer.norm in site.last for layer in way.layers)
        sums[stepped] += way.constant * math.prod(norm(layer) for layer in way.layers)
    return sums[0], sums[1]


def log_factor(shortcut: float, branch: float) -> float:
    """Logarithm of shortcut + branch: Eq. 7's factor, relative to the shortcut, which is 1 where it is the identity."""
    if shortcut == 0:  # of zeros; the logarithm stays a number
        return math.log(max(branch, 1e-300))
    relative = log_perturbation_bound(torch.tensor(branch / shortcut, dtype=torch.float64), torch.tensor(1.0))
    return math.log(shortcut) + float(relative)


def by_stage(parts: list[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for stage, part in parts:
        sums[stage] = sums.get(stage, 0.0) + part
    return sums


def _block(link: Link, ways: Ways, norms: Mapping[Operator, Norm]) -> BlockBound:
    def parts(figure: str) -> tuple[float, float]:
        return split(link.site, ways, lambda layer: getattr(norms[layer], figure))

    shortcut, branch = parts("estimate")
    log, certified, reshaped = (log_factor(*parts(figure)) for figure in ("estimate", "upper", "reshaped"))
    layers = {layer.name: norms[layer] for layer in layers_on([ways])}
    return BlockBound(link.stage, link.path, branch, shortcut, log, certified, reshaped, layers)
