"""Augmentation of images held in memory: one vectorised pass over many samples, on their device."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from timestepper.data.order import generator
from timestepper.errors import DataError, UnknownNameError


@dataclass(frozen=True)
class Augment:
    """How a training image is varied.

    `pad`: so many pixels of 0 on every side, then a random crop of the original size. The zeros are black pixels, put
    on before normalising, as torchvision's `RandomCrop(padding=...)` on the image does.
    `flip`: mirrored left to right in half of the cases.
    `resized_crop`: a random part of random shape, scaled to the input size (image folders only; excludes `pad`).
    """

    pad: int = 0
    flip: bool = False
    resized_crop: bool = False

    def __post_init__(self) -> None:
        if self.pad < 0 or (self.pad and self.resized_crop):
            raise DataError(f"{self}: pad must not be negative, nor go together with resized_crop")


AUGMENTS = {
    "none": Augment(),
    "shift": Augment(pad=1),
    "crop_flip": Augment(pad=4, flip=True),
    "resized_crop": Augment(flip=True, resized_crop=True),
}
"""`shift` suits digits, which a mirror turns into other signs; `crop_flip` is CIFAR's; `resized_crop` ImageNet's."""


def resolve(augment: Augment | str) -> Augment:
    if isinstance(augment, Augment):
        return augment
    if augment not in AUGMENTS:
        raise UnknownNameError(f"no augmentation is called {augment!r}; there are {', '.join(AUGMENTS)}")
    return AUGMENTS[augment]


@dataclass(frozen=True)
class Draws:
    """The random numbers of one epoch, one of each per sample of the data set, in data order."""

    top: Tensor
    left: Tensor
    mirrored: Tensor

    def to(self, device: torch.device) -> "Draws":
        return Draws(self.top.to(device), self.left.to(device), self.mirrored.to(device))

    def of(self, samples: Tensor) -> "Draws":
        return Draws(self.top[samples], self.left[samples], self.mirrored[samples])


def draw(augment: Augment, samples: int, seed: int, epoch: int) -> Draws:
    """Drawn on the CPU for the whole epoch, so that every device, world size and first step sees the same numbers."""
    source = generator("augment", seed, epoch)
    top, left = torch.randint(2 * augment.pad + 1, (2, samples), generator=source)
    mirrored = torch.rand(samples, generator=source) < 0.5
    return Draws(top, left, mirrored if augment.flip else torch.zeros_like(mirrored))


def crop_and_flip(images: Tensor, draws: Draws, pad: int) -> Tensor:
    """Pad, crop each image at its own place and mirror it if drawn: one gather on uint8 NHWC, no loop over samples."""
    count, height, width, _ = images.shape
    device = images.device
    rows = draws.top[:, None] + torch.arange(height, device=device)
    across = torch.arange(width, device=device)
    columns = draws.left[:, None] + torch.where(draws.mirrored[:, None], across.flip(0), across)
    padded = F.pad(images, (0, 0, pad, pad, pad, pad)) if pad else images
    return padded[torch.arange(count, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]


class Normaliser:
    """uint8 NHWC to float32 NCHW: bytes to [0, 1], minus the mean, divided by the standard deviation.

    Tensors and not Python numbers as operands: a GPU replaces division by a number with a product, which rounds
    differently, and both devices are to give the same bits.
    """

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
    ):
        self.shift = torch.tensor([255 * m for m in mean], device=device)
        self.scale = torch.tensor([255 * s for s in std], device=device)
        self.memory_format = memory_format

    def __call__(self, images: Tensor) -> Tensor:
        scaled = images.to(torch.float32).sub_(self.shift).div_(self.scale)
        return scaled.permute(0, 3, 1, 2).contiguous(memory_format=self.memory_format)
