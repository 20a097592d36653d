"""metrics.jsonl: one line per logged interval and one per epoch, cut back on resume so that every step stands once.

Every value in it is a function of the recipe; times go to timing.jsonl, so a run that was killed and resumed has the
same metrics file, byte for byte, as one that was not.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper import validate
from timestepper.errors import CheckpointError
from timestepper.files import explain, open_own, read_file, write_atomic
from timestepper.validate import Source

_ADVICE = "restore the file, or move the run's folder away to start again"


class JsonLines:
    """A file of JSON lines that grows at its end and can be cut back to an earlier size."""

    def __init__(self, path: Path, size: int = 0):
        self.path = path
        try:
            self._file = open_own(path)  # without a buffer: no second try of a failed write at exit
            self._file.truncate(size)
            self._file.seek(0)
            self._sum = hashlib.sha256(self._file.read(size))
        except OSError as error:
            raise explain(error, path) from error

    def write(self, line: dict[str, Any]) -> None:
        """Add a line."""
        try:
            rest = (json.dumps(line) + "\n").encode()
            self._sum.update(rest)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise explain(error, self.path, 1000) from error

    def sync(self) -> dict[str, Any]:
        """Make all lines last through a power cut; what a checkpoint knows of them, to cut back to."""
        try:
            self._put_back()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise explain(error, self.path) from error
        return {"metrics_bytes": self._file.tell(), "metrics_sha256": self._sum.hexdigest()}

    def _put_back(self) -> None:
        """Where the file was removed, or replaced as editors and rotating logs do: all lines are still in ours."""
        if os.path.lexists(self.path) and os.path.samestat(os.lstat(self.path), os.fstat(self._file.fileno())):
            return
        self._file.seek(0)
        write_atomic(self.path, self._file.read())
        self._file.close()
        self._file = open_own(self.path)
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        self._file.close()


def read_known(path: Path, state: Mapping[str, Any]) -> bytes:
    """The lines that a checkpoint knows of, which must be as they were when it was saved."""
    size, expected = state["metrics_bytes"], state.get("metrics_sha256")  # older checkpoints have no sum
    data = path.read_bytes()[:size] if os.path.isfile(path) else b""
    if len(data) < size:
        damage = f"has {len(data)} bytes and had {size} when"
    elif expected not in (None, hashlib.sha256(data).hexdigest()):
        damage = "was changed since"
    else:
        return data
    raise CheckpointError(f"{path} {damage} the checkpoint was saved; {_ADVICE}")


@dataclass(frozen=True)
class _Line:
    step: int


@dataclass(frozen=True)
class _Metric(_Line):
    kind: str


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Lines that say of what kind they are."""
    return read_lines(path, _Metric)


def read_lines(path: Path, kind: type = _Line) -> Iterator[dict[str, Any]]:
    """The lines of a file; the last is passed over where it is not whole, as a killed process leaves it."""
    if not path.exists():
        return
    source = Source(path, CheckpointError)
    try:
        lines = read_file(path).splitlines()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}; {_ADVICE}") from None
    for number, text in enumerate(lines, 1):
        try:
            line = validate.parse(text.decode(), ".json", source)
            validate.build(kind, line, source, extra=True)
        except (CheckpointError, UnicodeDecodeError):
            if number < len(lines):
                raise CheckpointError(f"{path}, line {number} is damaged; {_ADVICE}") from None
        else:
            yield line


class Sums:
    """Loss and accuracy summed over samples, as plain floats that a checkpoint can hold."""

    def __init__(self, values: list[float] | None = None):
        self.values = list(values or (0.0, 0.0, 0.0))

    def add(self, loss: float, correct: float, count: float) -> None:
        """``loss`` is a mean over ``count`` samples."""
        self.values = [self.values[0] + loss * count, self.values[1] + correct, self.values[2] + count]

    def means(self) -> dict[str, float]:
        """Loss and error; empty where nothing was added."""
        loss, correct, count = self.values
        return {"loss": loss / count, "error": (count - correct) / count} if count else {}
