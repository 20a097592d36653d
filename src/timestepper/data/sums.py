"""Files that must have a known sum."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from timestepper.errors import DataError
from timestepper.files import read_file


@dataclass(frozen=True)
class VerifiedFiles:
    """The files of a folder and the sum that each must have."""

    algorithm: ClassVar[str]
    folder: str
    sums: dict[str, str]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(self.sums)

    def read_bytes(self, path: Path) -> bytes:
        """The bytes of a file, after comparing their sum: what is parsed later is what was verified."""
        wanted = f"expected {self.algorithm} {self.sums[path.name]}"
        try:
            data = read_file(path)
        except FileNotFoundError as error:
            raise DataError(f"{path}: missing ({wanted}); copy or download the data set again") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}; {wanted})") from error
        found = hashlib.new(self.algorithm, data, usedforsecurity=False).hexdigest()
        if found != self.sums[path.name]:
            raise DataError(
                f"{path}: {self.algorithm} {found}, {wanted}; the file ({len(data)} bytes) is damaged, cut short or "
                "another one: copy or download the data set again"
            )
        return data
