"""FGSM and PGD in the largest-change norm; distances are in pixel values, in which images run from 0 to 1."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.errors import StabilityError
from timestepper.stability import draws


@dataclass(frozen=True)
class Pixels:
    """How a classifier's inputs were made from pixel values: (pixels - mean) / std in each channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def decode(self, images: Tensor) -> Tensor:
        return images * self._row(images, self.std) + self._row(images, self.mean)

    def encode(self, pixels: Tensor) -> Tensor:
        return (pixels - self._row(pixels, self.mean)) / self._row(pixels, self.std)

    def _row(self, images: Tensor, values: tuple[float, ...]) -> Tensor:
        if len(values) != images.shape[1]:
            raise StabilityError(
                f"images have {images.shape[1]} channels, but mean and std are given for {len(values)}; "
                "give those that the data set was normalised with"
            )
        return torch.tensor(values, dtype=images.dtype, device=images.device).reshape(1, -1, 1, 1)


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float, scale: Pixels) -> Tensor:
    """One step of ``epsilon`` up the loss in every pixel (Goodfellow et al., 2015)."""
    pixels = scale.decode(images)
    return scale.encode((pixels + epsilon * _uphill(model, pixels, labels, scale)).clamp(0, 1))


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    scale: Pixels,
    *,
    indices: Sequence[int],
    steps: int = 20,
    seed: int = 0,
) -> Tensor:
    """Small steps up the loss from a random start, kept within ``epsilon`` of the image (Madry et al., 2018)."""
    original = scale.decode(images)
    start = draws.uniform(original, indices, seed) * 2 - 1
    pixels = (original + epsilon * start).clamp(0, 1)
    for _ in range(steps):
        moved = pixels + 2.5 * epsilon / steps * _uphill(model, pixels, labels, scale)
        pixels = torch.minimum(torch.maximum(moved, original - epsilon), original + epsilon).clamp(0, 1)
    return scale.encode(pixels)


def _uphill(model: nn.Module, pixels: Tensor, labels: Tensor, scale: Pixels) -> Tensor:
    """Sign of the loss's gradient. The sum over samples, so that no sample's sign depends on its batch."""
    with torch.enable_grad():
        pixels = pixels.detach().requires_grad_()
        loss = F.cross_entropy(model(scale.encode(pixels)), labels, reduction="sum", ignore_index=-1)
        (gradient,) = torch.autograd.grad(loss, pixels)
    return gradient.sign()
