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


def draw(augment: Augment, samples: int, seed: int, epoch: int) -> Tensor:
    """The top and left of each sample's crop, and whether it is mirrored, in data order, (3, samples).

    Drawn on the CPU for the whole epoch, so that every device, world size and first step sees the same numbers.
    """
    source = generator("augment", seed, epoch)
    corners = torch.randint(2 * augment.pad + 1, (2, samples), generator=source)
    mirrored = torch.rand(samples, generator=source) < 0.5
    return torch.cat([corners, mirrored[None] & augment.flip])


def crop_and_flip(images: Tensor, draws: Tensor, pad: int) -> Tensor:
    """Pad, crop each image at its own place and mirror it if drawn: one gather on uint8 NHWC, no loop over samples."""
    count, height, width, _ = images.shape
    device = images.device
    top, left, mirrored = draws[..., None]
    across = torch.arange(width, device=device)
    rows = top + torch.arange(height, device=device)
    columns = left + torch.where(mirrored.bool(), across.flip(0), across)
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
