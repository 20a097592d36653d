"""Spectral norms of convolutions as the operators they are: stride, zero padding, dilation, groups, real input size.

Three figures for one layer, from cheap to certain:

``reshaped_norms``  of the kernel as an (outputs, inputs * taps) matrix: what papers often print; no bound either way
``operator_norms``  by power iteration on the operator and its adjoint: converges to the norm, always from below
``upper_bounds``    never below the norm: by Gram iteration on the frequencies of a circular convolution that holds it

All work on a stack of layers of one shape at a time. A linear layer is a 1x1 convolution on one pixel.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """All of a convolution but its weight."""

    size: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def options(self, layers: int = 1) -> dict[str, Any]:
        """What torch is told of so many convolutions side by side."""
        how = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return {**how, "groups": layers * self.groups}

    def output_size(self, kernel: Pair) -> Pair:
        rows, columns = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, p, d, k, s in zip(self.size, self.padding, self.dilation, kernel, self.stride, strict=True)
        )
        return rows, columns


def apply(weights: Tensor, inputs: Tensor, geometry: Geometry) -> Tensor:
    """L convolutions (L, outputs, inputs / groups, k, k) on L inputs (L, channels, height, width), in one call."""
    layers = len(weights)
    outputs = F.conv2d(inputs.flatten(0, 1)[None], weights.flatten(0, 1), **geometry.options(layers))
    return outputs.reshape(layers, -1, *outputs.shape[2:])


def adjoint(weights: Tensor, outputs: Tensor, geometry: Geometry) -> Tensor:
    """The transpose of :func:`apply` as a linear map, which is its gradient."""
    layers = len(weights)
    shape = (1, layers * geometry.groups * weights.shape[2], *geometry.size)
    options = geometry.options(layers)
    inputs = conv2d_input(shape, weights.flatten(0, 1), outputs.flatten(0, 1)[None], **options)
    return inputs.reshape(layers, -1, *geometry.size)


@torch.no_grad()
def operator_norms(
    weights: Tensor,
    geometry: Geometry,
    start: Tensor | None = None,
    *,
    iterations: int = 1000,
    tolerance: float | None = 1e-4,
) -> tuple[Tensor, Tensor]:
    """Power iteration: the norms (L,) and the input vectors that reach them, from which a later call can go on.

    Stops when ten iterations raise no norm by more than ``tolerance`` of itself. ``tolerance=None`` runs exactly
    ``iterations`` without ever waiting for the device.
    """
    vectors = _start(weights, geometry) if start is None else start
    before = weights.new_zeros(len(weights))
    for count in range(1, iterations + 1):
        vectors = _unit(adjoint(weights, apply(weights, vectors, geometry), geometry))
        if tolerance is not None and count % 10 == 0:
            norms = _length(apply(weights, vectors, geometry))
            if bool((norms - before <= tolerance * norms).all()):
                break
            before = norms
    return _length(apply(weights, vectors, geometry)), vectors


def _start(weights: Tensor, geometry: Geometry) -> Tensor:
    """Fixed random vectors: the same figure every time, and no draw from anybody's generator."""
    shape = (len(weights), weights.shape[2] * geometry.groups, *geometry.size)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return _unit(noise.to(weights))


def _length(vectors: Tensor) -> Tensor:
    return vectors.flatten(1).norm(dim=1)


def _unit(vectors: Tensor) -> Tensor:
    # A zero layer maps every vector to zero; it stays there, and its norm reads 0.
    return vectors / _length(vectors).clamp_min(torch.finfo(vectors.dtype).tiny).reshape(-1, 1, 1, 1)


@torch.no_grad()
def reshaped_norms(weights: Tensor, groups: int = 1) -> Tensor:
    """Largest singular value of each kernel written as a matrix (of each group's, the largest)."""
    return _largest_singular_values(_by_group(weights, groups).flatten(3)).amax(1)


@torch.no_grad()
def upper_bounds(
    weights: Tensor, geometry: Geometry, lower: Tensor, *, squarings: int = 8, dense_up_to: int = 512
) -> Tensor:
    """Numbers (L,) that no norm exceeds, given numbers ``lower`` that no norm is below (power iteration's).

    A zero-padded convolution is a part (some rows, some columns) of a circular one on a torus that is larger by the
    padding, and a part of a matrix has no larger norm. The circular one falls apart into one small matrix per
    frequency (per coarse frequency and its aliases where there is a stride), and Gram iteration, repeated squaring
    of M M*, bounds each from above: too large by a factor rank ** (1 / 2 ** (squarings + 2)) at most. A frequency
    whose bound has come down to that of an earlier one cannot matter any more and is dropped. In double precision.
    On few pixels the torus is much larger than the image and the bound loose: an operator on up to
    ``dense_up_to`` values is written out instead.
    """
    rounding = 1 + torch.finfo(weights.dtype).eps + 1e-12
    if weights.shape[3:] == (1, 1):  # no neighbours: the reshaped kernel is the operator
        return reshaped_norms(weights.double(), geometry.groups).to(weights.dtype) * rounding
    if weights.shape[2] * geometry.groups * math.prod(geometry.size) <= dense_up_to:
        return _dense_norms(weights.double(), geometry).to(weights.dtype) * rounding
    grouped = _by_group(weights, geometry.groups).flatten(0, 1).double()
    best = lower.double().repeat_interleave(geometry.groups)
    for matrices in _frequency_matrices(grouped, geometry):
        best = _gram_bounds(matrices, best, squarings)
    return best.reshape(len(weights), geometry.groups).amax(1).to(weights.dtype) * rounding


def _dense_norms(weights: Tensor, geometry: Geometry) -> Tensor:
    """Exact: each operator written out as a matrix, from its action on every unit vector."""
    shape = (weights.shape[2] * geometry.groups, *geometry.size)
    units = torch.eye(math.prod(shape), dtype=weights.dtype, device=weights.device).unflatten(1, shape)
    norms = []
    for weight in weights:
        norms.append(_largest_singular_values(F.conv2d(units, weight, **geometry.options()).flatten(1)))
    return torch.stack(norms)


def _largest_singular_values(matrices: Tensor) -> Tensor:
    """By the eigenvalues of the smaller Gram matrix: as exact for the largest as an SVD, and several times faster."""
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    return torch.linalg.eigvalsh(wide @ wide.mT)[..., -1].clamp_min(0).sqrt()


def _frequency_matrices(weights: Tensor, geometry: Geometry):
    """The circular convolution's blocks, row by row of frequencies: (L, columns, outputs, aliases * inputs) each."""
    kernel = (weights.shape[3], weights.shape[4])
    phases, coarse = [], []
    for n, m, s, p, d, k in zip(
        geometry.size,
        geometry.output_size(kernel),
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        kernel,
        strict=True,
    ):
        torus = s * math.ceil(max(n + p, m * s) / s)
        frequencies = torch.arange(torus, device=weights.device).reshape(s, torus // s).T  # (coarse, aliases)
        angles = 2 * math.pi * d / torus * frequencies.double()[..., None] * torch.arange(k, device=weights.device)
        phases.append(torch.polar(torch.full_like(angles, 1 / math.sqrt(s)), angles))
        coarse.append(torus // s)
    kernel_values = weights.to(torch.complex128)
    columns = phases[1][: coarse[1] // 2 + 1]  # the weights are real: the other half is the mirror image of this one
    for row in phases[0]:
        blocks = torch.einsum("loiyx,ay,fbx->lfoabi", kernel_values, row, columns)
        yield blocks.flatten(3)


def _gram_bounds(matrices: Tensor, floor: Tensor, squarings: int) -> Tensor:
    """Largest upper bound per layer on the norms of matrices (L, F, m, n), or ``floor`` where none exceeds it."""
    if matrices.shape[2] > matrices.shape[3]:
        matrices = matrices.mT
    layer = torch.arange(len(matrices), device=matrices.device).repeat_interleave(matrices.shape[1])
    flat = matrices.flatten(0, 1)
    gram = flat @ flat.mH
    log_square = torch.zeros(len(gram), dtype=torch.float64, device=gram.device)
    for squared in range(squarings + 1):
        scale = gram.flatten(1).norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        log_square = log_square + scale.log() / 2**squared
        alive = (log_square / 2).exp() > floor[layer]
        layer, log_square = layer[alive], log_square[alive]
        if squared < squarings:
            gram = gram[alive] / scale[alive].reshape(-1, 1, 1)
            gram = gram @ gram.mH
    return floor.scatter_reduce(0, layer, (log_square / 2).exp(), "amax")


def _by_group(weights: Tensor, groups: int) -> Tensor:
    """(L, outputs, inputs / groups, k, k) to (L, groups, outputs / groups, inputs / groups, k, k)."""
    return weights.unflatten(1, (groups, -1))
