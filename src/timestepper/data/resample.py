"""The Triton kernel that cuts windows out of images of many sizes in one launch, to Pillow's pixels."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import ArrayLike
from torch import Tensor

_FIELDS = 13  # of a row of the table: address, height and width of an image, its window, its slot
_PIXELS = 256  # of a block


def launch(images: Sequence[Tensor], windows: ArrayLike, slots: ArrayLike, out: Tensor) -> None:
    """The window of each image (uint8, 3 x height x width) into its slot of `out` (uint8, NHWC).

    Does not wait for the device: `images` must stay until the kernel has run.
    """
    rows = np.empty((len(images), _FIELDS), np.int64)
    rows[:, :3] = [(image.data_ptr(), *image.shape[1:]) for image in images]
    rows[:, 3:12], rows[:, 12] = windows, slots
    table = torch.from_numpy(rows).to(out.device)
    size = out.shape[1]
    cut[(len(rows), triton.cdiv(size * size, _PIXELS))](table, out, size, _FIELDS, _PIXELS)


@triton.jit
def _reach(place, length, scaled):
    """Around the middle of a scaled pixel: that middle, its triangle's slope and unit of weight, the pixels in it."""
    scale = length.to(tl.float64) / scaled.to(tl.float64)
    reach = tl.maximum(scale, 1.0)
    centre = (place.to(tl.float64) + 0.5) * scale
    begin = tl.maximum((centre - reach + 0.5).to(tl.int64), 0)
    end = tl.minimum((centre + reach + 0.5).to(tl.int64), length)
    taps = (2 * reach + 2).to(tl.int64)
    slope = 1 / reach
    total = tl.zeros_like(centre)
    for tap in range(0, taps):
        weight = 1 - tl.abs((tap + begin - centre + 0.5) * slope)
        total += tl.where(tap + begin < end, tl.maximum(weight, 0.0), 0.0)
    return centre, slope, 4194304.0 / total, begin, end, taps  # divided once: float64 is slow at it


@triton.jit
def _weight(pixel, centre, slope, unit, end):
    """In units of 2**-22, as Pillow rounds it."""
    weight = tl.maximum(1 - tl.abs((pixel - centre + 0.5) * slope), 0.0)
    return tl.where(pixel < end, weight * unit + 0.5, 0.0).to(tl.int32)


@triton.jit
def _byte(total):
    return tl.minimum(tl.maximum((total + 2097152) >> 22, 0), 255)


@triton.jit
def cut(table, out, size, FIELDS: tl.constexpr, PIXELS: tl.constexpr):
    """A block of pixels of one square: along the rows first, rounded to bytes, then down the columns, as Pillow does.

    A row of the region is scaled anew for every pixel that it reaches: a few more products, and nothing to keep.
    """
    row = table + tl.program_id(0) * FIELDS
    image = tl.load(row).to(tl.pointer_type(tl.uint8))
    height, pitch = tl.load(row + 1), tl.load(row + 2)
    left, top, length_x, length_y = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    across, down, first_x, first_y = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9), tl.load(row + 10)
    mirrored, slot = tl.load(row + 11), tl.load(row + 12)

    pixel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < size * size
    x = pixel % size
    x = tl.where(mirrored != 0, size - 1 - x, x)
    centre_x, slope_x, unit_x, begin_x, end_x, taps_x = _reach(x + first_x, length_x, across)
    centre_y, slope_y, unit_y, begin_y, end_y, taps_y = _reach(pixel // size + first_y, length_y, down)

    plane = height * pitch
    red, green, blue = (tl.zeros([PIXELS], tl.int32), tl.zeros([PIXELS], tl.int32), tl.zeros([PIXELS], tl.int32))
    for tap_y in range(0, taps_y):
        y = begin_y + tap_y
        here = image + (top + y) * pitch + left
        r, g, b = (tl.zeros([PIXELS], tl.int32), tl.zeros([PIXELS], tl.int32), tl.zeros([PIXELS], tl.int32))
        for tap_x in range(0, taps_x):
            at = begin_x + tap_x
            weight = _weight(at, centre_x, slope_x, unit_x, end_x)
            used = inside & (at < end_x) & (y < end_y)
            r += weight * tl.load(here + at, mask=used, other=0).to(tl.int32)
            g += weight * tl.load(here + at + plane, mask=used, other=0).to(tl.int32)
            b += weight * tl.load(here + at + 2 * plane, mask=used, other=0).to(tl.int32)
        weight = _weight(y, centre_y, slope_y, unit_y, end_y)
        red += weight * _byte(r)
        green += weight * _byte(g)
        blue += weight * _byte(b)
    place = out + (slot * size * size + pixel) * 3
    tl.store(place, _byte(red).to(tl.uint8), mask=inside)
    tl.store(place + 1, _byte(green).to(tl.uint8), mask=inside)
    tl.store(place + 2, _byte(blue).to(tl.uint8), mask=inside)
