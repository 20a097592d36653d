"""Windows of many decoded images of any size, cut out on their device: Pillow's arithmetic, and so Pillow's pixels."""

import importlib.util
import os

import torch
from torch import Tensor

from timestepper.data.windows import Window

_BITS = 22  # of a weight: Pillow computes with whole numbers


def cut_all(images: list[Tensor], windows: list[Window], slots: list[int], out: Tensor) -> None:
    """The window of each image (uint8, 3 x height x width) into its slot of `out` (uint8, NHWC).

    On a GPU by one kernel for all of them; elsewhere, and where there is no Triton, one by one.
    """
    if (out.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and importlib.util.find_spec("triton"):
        from timestepper.data.resample_kernel import launch

        launch(images, windows, slots, out)
    else:
        for image, window, slot in zip(images, windows, slots, strict=True):
            out[slot] = cut_one(image, window, out.shape[1])


def cut_one(image: Tensor, window: Window, size: int) -> Tensor:
    """One window in plain PyTorch, exact: products and sums are whole numbers below 2**53."""
    left, top, width, height, across, down, x, y, mirrored = window
    pixels = image[:, top : top + height, left : left + width].double()
    pixels = _rounded(pixels @ _weights(width, across, x, size, image.device).T)
    pixels = _rounded(_weights(height, down, y, size, image.device) @ pixels)
    return (pixels.flip(2) if mirrored else pixels).permute(1, 2, 0).to(torch.uint8)


def _weights(length: int, scaled: int, first: int, count: int, device: torch.device) -> Tensor:
    """What each of `length` pixels adds to `count` of the `scaled` pixels, from `first` on: a triangle around each."""
    scale = length / scaled
    reach = max(scale, 1.0)
    centre = (torch.arange(first, first + count, device=device, dtype=torch.float64) + 0.5) * scale
    begin, end = (centre - reach + 0.5).floor().clamp(min=0), (centre + reach + 0.5).floor()
    place = torch.arange(length, device=device, dtype=torch.float64)
    weight = (1 - ((place - centre[:, None] + 0.5) * (1 / reach)).abs()).clamp(min=0)
    weight *= (place >= begin[:, None]) & (place < end[:, None])
    return (weight / weight.sum(1, keepdim=True) * 2**_BITS + 0.5).floor()


def _rounded(sums: Tensor) -> Tensor:
    return (sums / 2**_BITS + 0.5).floor().clamp(0, 255)
