"""Measured growth of perturbations, ||y_D(y_0 + e) - y_D(y_0)|| / ||e||: what Proposition 1 bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from timestepper.errors import StabilityError
from timestepper.stability.chain import Chain, full_precision

KINDS = ("random", "adversarial", "power")
_TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Growth:
    """Growth of one kind of perturbation: the largest over the samples, for each block and from y_0 to y_D.

    For ``random`` and ``adversarial``, the blocks' figures are those of one perturbation on its way through the
    network. For ``power``, each block has its own worst direction.
    """

    kind: str
    blocks: tuple[float, ...]
    end_to_end: float
    mean: float


@full_precision()
def measured_growth(
    chain: Chain, kind: str, *, size: float = 1e-3, labels: Tensor | None = None, iterations: int = 20, seed: int = 0
) -> Growth:
    """Perturb y_0 by ``size`` of its own length in one of the KINDS of direction and measure.

    ``adversarial`` climbs the cross-entropy by projected gradient steps (L2), against ``labels`` or, without them,
    against the network's own decision. ``power`` iterates to the top singular direction of the Jacobian.
    """
    start = chain.features[0]
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(start)
    radius = size * _lengths(start)
    if kind == "random":
        return _on_the_way(chain, kind, _scaled(noise, radius))
    if kind == "adversarial":
        return _on_the_way(chain, kind, _climb(chain, noise, radius, labels, iterations))
    if kind == "power":
        direction = top_direction(lambda y: chain.run(y)[-1], start, noise, iterations)
        whole = _on_the_way(chain, kind, _scaled(direction, radius))
        blocks = tuple(_worst_of_block(chain, index, size, iterations, seed) for index in range(len(chain.links)))
        return Growth(kind, blocks, whole.end_to_end, whole.mean)
    raise StabilityError(f"unknown perturbation {kind!r}; known are {', '.join(KINDS)}")


def top_direction(function: Callable[[Tensor], Tensor], at: Tensor, start: Tensor, iterations: int) -> Tensor:
    """Power iteration on J^T J of a function of each sample: the direction that it stretches most near ``at``.

    J^T u is linear in u, so its own backward gives J v: the function itself runs only once.
    """
    at = at.detach().requires_grad_()
    output = function(at)
    dual = torch.zeros_like(output, requires_grad=True)
    (pull,) = torch.autograd.grad(output, at, dual, create_graph=True)
    direction = _unit(start)
    for _ in range(iterations):
        (pushed,) = torch.autograd.grad(pull, dual, direction, retain_graph=True)
        # At unit length again before the way back: the square of a deep network's growth overflows.
        (pulled,) = torch.autograd.grad(output, at, _unit(pushed), retain_graph=True)
        direction = _unit(pulled)
    return direction


@torch.no_grad()
def _on_the_way(chain: Chain, kind: str, perturbation: Tensor) -> Growth:
    """One perturbation of y_0, followed through all blocks."""
    moved = chain.run(chain.features[0] + perturbation)
    lengths = [_lengths(after - before) for after, before in zip(moved, chain.features, strict=True)]
    blocks = tuple(_ratios(after, before).max().item() for before, after in pairwise(lengths))
    whole = _ratios(lengths[-1], lengths[0])
    return Growth(kind, blocks, whole.max().item(), whole.mean().item())


def _worst_of_block(chain: Chain, index: int, size: float, iterations: int, seed: int) -> float:
    block, at = chain.links[index].block, chain.features[index]
    noise = torch.randn(at.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(at)
    direction = top_direction(lambda y: block(y.clone()), at, noise, iterations)
    perturbation = _scaled(direction, size * _lengths(at))
    with torch.no_grad():
        moved = block(at + perturbation) - chain.features[index + 1]
    return _ratios(_lengths(moved), _lengths(perturbation)).max().item()


def _climb(chain: Chain, noise: Tensor, radius: Tensor, labels: Tensor | None, iterations: int) -> Tensor:
    start = chain.features[0]
    if labels is None:
        labels = chain.logits(start).argmax(1)
    perturbation = _scaled(noise, radius / 10)
    for _ in range(iterations):
        perturbation.requires_grad_()
        loss = F.cross_entropy(chain.logits(start + perturbation), labels, reduction="sum", ignore_index=-1)
        (gradient,) = torch.autograd.grad(loss, perturbation)
        moved = perturbation.detach() + _scaled(gradient, 2.5 * radius / iterations)
        perturbation = _scaled(moved, torch.minimum(_lengths(moved), radius))
    return perturbation


def _lengths(features: Tensor) -> Tensor:
    """In float64: hundreds of blocks can make features whose squares are too large for float32."""
    return features.flatten(1).double().norm(dim=1)


def _scaled(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Each sample's vector at a length; a zero vector stays zero."""
    scale = lengths / _lengths(vectors).clamp_min(_TINY)
    return (vectors * scale.reshape(-1, *[1] * (vectors.dim() - 1))).to(vectors.dtype)


def _unit(vectors: Tensor) -> Tensor:
    return _scaled(vectors, torch.ones_like(_lengths(vectors)))


def _ratios(after: Tensor, before: Tensor) -> Tensor:
    """Growth per sample; where nothing was left to grow, nothing grew."""
    return torch.where(before > 0, after / before.clamp_min(_TINY), torch.zeros_like(after))
