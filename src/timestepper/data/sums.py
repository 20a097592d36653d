"""Files that must have a known sum."""

import hashlib
from pathlib import Path

from timestepper.errors import DataError


def read_verified(path: Path, expected: str, algorithm: str) -> bytes:
    """The bytes of a file, after comparing their sum: what is parsed later is what was verified."""
    wanted = f"expected {algorithm} {expected}"
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing ({wanted}); copy or download the data set again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}; {wanted})") from error
    found = hashlib.new(algorithm, data, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(
            f"{path}: {algorithm} {found}, {wanted}; the file ({len(data)} bytes) is damaged, cut short or another "
            "one: copy or download the data set again"
        )
    return data


def verify_array(name: str, data: memoryview | bytes, expected: str) -> None:
    found = hashlib.sha256(data).hexdigest()
    if found != expected:
        raise DataError(f"{name}: decoded to sha256 {found}, expected {expected}; the decoder is not lossless here")
