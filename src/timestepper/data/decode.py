"""One image file to one RGB image, or an error that names the file."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image, UnidentifiedImageError

from timestepper.errors import DataError, first_line

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""Pillow knows many more, some of which start other programs; a file's name says nothing about its format."""

ADVICE = "replace or remove it (`timestepper check-data` lists every such file)"


@contextmanager
def bombs_refused() -> Iterator[None]:
    """A header that claims more pixels than Pillow's limit is an error here, not a warning: it would fill the memory.

    Warning filters belong to the whole process, so this goes around many images and around threads, not inside them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def decode_rgb(path: str) -> Image.Image:
    """Decode to the end, so that a file cut short is noticed, whatever is wrong with it raising as Pillow raises."""
    with Image.open(path, formats=FORMATS) as image:
        if image.mode.startswith("I"):  # 16 bits per pixel: Pillow would clip to white what is above 255
            return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
        if image.mode == "F":
            raise ValueError("floating-point pixels, whose range is not known")
        if image.mode == "P" and "transparency" in image.info:
            return image.convert("RGBA").convert("RGB")
        return image.convert("RGB")


def reason(error: Exception) -> str:
    """Why a file could not be decoded, in a few words of one line and without its path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def bad_image(path: str, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read as an image: {reason(error)}; {ADVICE}")
