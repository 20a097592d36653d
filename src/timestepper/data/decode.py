"""One image file to the pixels of one sample on the CPU, or an error that names the file. Needs no torch."""

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError

from timestepper.data.windows import Windows, cut
from timestepper.errors import DataError, first_line
from timestepper.files import check_readable

FORMATS = ("JPEG", "PNG", "BMP", "PPM", "TIFF", "WEBP", "GIF")
"""Pillow knows many more, some of which start other programs; a file's name says nothing about its format."""

ADVICE = "replace or remove it (`timestepper check-data` lists every such file)"


def refuse_bombs() -> None:
    """A header that claims more pixels than Pillow's limit is an error from now on: it would fill the memory.

    For the whole process, because warning filters are: threads that set and reset them would undo each other's.
    """
    warnings.simplefilter("error", Image.DecompressionBombWarning)


def decode_rgb(source: str | BinaryIO) -> Image.Image:
    """Decode to the end, so that a file cut short is noticed, whatever is wrong with it raising as Pillow raises."""
    if isinstance(source, str):
        check_readable(Path(source))
    with Image.open(source, formats=FORMATS) as image:
        if image.mode == "RGB":
            image.load()
            return image
        if image.mode.startswith("I"):  # 16 bits per pixel: Pillow would clip to white what is above 255
            return Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8)).convert("RGB")
        if image.mode == "F":
            raise ValueError("floating-point pixels, whose range is not known")
        if image.mode == "P" and "transparency" in image.info:
            return image.convert("RGBA").convert("RGB")
        return image.convert("RGB")


def read_sample(path: str, seed: int, windows: Windows, source: BinaryIO | None = None) -> np.ndarray:
    """The pixels that `seed` shows of a file, or of its bytes where they were read already."""
    try:
        image = decode_rgb(source or path)
        return np.asarray(cut(image, windows.of(*image.size, seed), windows.view.size))
    except Exception as error:
        raise bad_image(path, error) from error


def reason(error: Exception) -> str:
    """Why a file could not be decoded, in a few words of one line and without its path."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)


def bad_image(path: str, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read as an image: {reason(error)}; {ADVICE}")
