"""Which part of an image is shown: random parts, resizes and mirrors of image files, for every decoder alike.

Numbers and Pillow only: the processes that decode images need no torch.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image

_AREA, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of a random part: torchvision's defaults, the usual ones
_THIN, _MANY = 64, 1 << 25  # how many times as long as wide, and the pixels of an image that take 128 MiB


class View(NamedTuple):
    """How images become squares of `size`: a random part of each, or the centre once the shorter side is `resize`."""

    size: int
    resize: int
    random_part: bool = False
    flip: bool = False


class Window(NamedTuple):
    """A region of an image, the size it is scaled to, and the corner in that where the square begins that is shown."""

    left: int
    top: int
    width: int
    height: int
    across: int
    down: int
    x: int
    y: int
    mirrored: bool


class Windows:
    """The window of a sample, by its seed. Not to be shared by threads."""

    def __init__(self, view: View):
        self.view = view
        self._words = np.random.MT19937(0)
        self._seeder = np.random.RandomState(self._words)

    def of(self, width: int, height: int, seed: int) -> Window:
        """What torchvision's transforms show of an image of this size after `torch.manual_seed(seed)`."""
        view = self.view
        if not (view.random_part or view.flip):
            return centre(width, height, view)
        self._seeder.seed(seed & 0xFFFFFFFF)  # torch's generator takes no more of it either
        words = iter(self._words.random_raw(2 * _TRIES + 3).tolist())
        if view.random_part:
            window = Window(*random_part(width, height, words), view.size, view.size, 0, 0, False)
        else:
            window = centre(width, height, view)
        return window._replace(mirrored=view.flip and uniform(words) < 0.5)


def uniform(words: Iterator[int], low: float = 0.0, high: float = 1.0) -> float:
    """torch makes a float32 of 24 bits; here nothing is rounded on the way, which differs among processors."""
    return low + (next(words) & 0xFFFFFF) / (1 << 24) * (high - low)


def random_part(width: int, height: int, words: Iterator[int]) -> tuple[int, int, int, int]:
    """Left, top, width and height of a part with random area and ratio, else of the widest one that is allowed."""
    for _ in range(_TRIES):
        area = width * height * uniform(words, *_AREA)
        ratio = math.exp(uniform(words, *map(math.log, _RATIO)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            top = next(words) % (height - down + 1)
            return next(words) % (width - across + 1), top, across, down
    across = min(width, round(height * _RATIO[1]))
    down = min(height, round(width / _RATIO[0]))
    return (width - across) // 2, (height - down) // 2, across, down


def centre(width: int, height: int, view: View) -> Window:
    """The middle of the whole image, once its shorter side is `resize`."""
    longer = int(view.resize * max(width, height) / min(width, height))
    across, down = (view.resize, longer) if width <= height else (longer, view.resize)
    corner = round((across - view.size) / 2), round((down - view.size) / 2)
    return Window(0, 0, width, height, across, down, *corner, False)


def cut(image: Image.Image, window: Window, size: int) -> Image.Image:
    """The window of an image, by Pillow. Of a very thin one only what is shown is scaled: all of it, 1 x 6000 pixels to
    a shorter side of 256, would fill the memory. Its pixels are the same but for rounding, so others stay as they are.
    """
    left, top, width, height, across, down, x, y, mirrored = window
    if (width, height) != image.size:
        image = image.crop((left, top, left + width, top + height))
    if across * down > _MANY and max(across, down) > _THIN * min(across, down):
        box = x * width / across, y * height / down, (x + size) * width / across, (y + size) * height / down
        image = image.resize((size, size), Image.Resampling.BILINEAR, box)
    else:
        image = image.resize((across, down), Image.Resampling.BILINEAR)
        if (across, down) != (size, size):
            image = image.crop((x, y, x + size, y + size))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else image
