"""Reading ``results/*.json``: a record that is damaged, edited, unfinished or of another schema never gets through."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timestepper.errors import RecordError
from timestepper.files import with_checksum
from timestepper.report import strict
from timestepper.report.record_checks import check

SCHEMA = 1


@dataclass(frozen=True)
class Noise:
    """Figures under Gaussian input noise: for each level one error (a fraction) and one loss per draw."""

    levels: tuple[float, ...]
    error: tuple[tuple[float, ...], ...]
    loss: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Growth:
    """Natural logarithms, block by block in depth order: Proposition 1's factors and the growth that was measured."""

    blocks: tuple[str, ...]
    log_bound: tuple[float, ...]
    log_growth: dict[str, tuple[float, ...]]
    log_end_to_end: dict[str, float]
    step_sizes: tuple[float, ...] = ()


@dataclass(frozen=True)
class Record:
    """One finished run: the parts of a record that the page uses; others may stand beside them."""

    schema: int
    kind: str
    name: str
    seed: int
    recipe: dict[str, dict]
    data_sha256: str
    final: dict[str, Any]
    epochs: tuple[dict, ...]
    step_sizes: dict[str, tuple[tuple[float, ...], ...]]
    wall_seconds: float
    world: int
    device: str
    commit: str
    versions: dict[str, str]
    sha256: str
    noise: Noise | None = None
    stability: Growth | None = None
    path: str = field(default="")


def load_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All records of a folder, and a message for each file that is none; the other files are not affected."""
    return read_records(sorted(folder.glob("*.json")))


def read_records(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """The records of some files, and a message for each file that is none."""
    records = []
    problems = []
    for path in paths:
        try:
            records.append(read_record(path))
        except RecordError as error:
            problems.append(str(error))
    return records, problems


def read_record(path: Path) -> Record:
    """One record, whole, untouched and finished."""
    try:
        return _read(path)
    except RecursionError:
        raise RecordError(f"{path}: nested too deeply to be a record; restore the file or run it again") from None


def _read(path: Path) -> Record:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RecordError(f"{path}: not readable as JSON ({error}); restore the file or run it again") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise RecordError(f"{path}: no record of a run (it has no schema number); move it out of the folder")
    if content["schema"] != SCHEMA:
        raise RecordError(
            f"{path}: schema version {content['schema']!r}, this program reads {SCHEMA}; use the version of "
            "timestepper that wrote it, or run it again"
        )
    if content.get("sha256") != with_checksum(content)["sha256"]:
        raise RecordError(f"{path}: the checksum does not fit, so it was edited or damaged; restore it or run it again")
    known = {name: value for name, value in content.items() if name in Record.__dataclass_fields__}
    record = strict.build(Record, {**known, "path": str(path)}, str(path))
    check(record)
    return record
