"""The files of records.

A run directory holds its record as one file. In the results it is a summary that a person can read, with its curves,
compressed, in a file beside it; ``converted_from`` is the checksum that it had as one file. Both forms are read, and
neither gets through where it is damaged, edited, unfinished or of another schema.
"""

import glob
import hashlib
import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timestepper import validate
from timestepper.errors import RecordError, first_line
from timestepper.files import digest, make_folder, read_file, with_checksum, write_atomic, write_json
from timestepper.recipe.load import identity
from timestepper.records import curves
from timestepper.records.making import WHOLE, file_name
from timestepper.records.record import Record, build

SCHEMA = 2  # a summary with its curves beside it
RECORD = "record.json"
_WIDTH = 116
_RESTORE = "restore the file or run it again"
_AGAIN = "remove it, and the same command makes it again from the run's last checkpoint"


# -- in a run directory ------------------------------------------------------------------------------------------------


def write(content: dict[str, Any], run: Path) -> None:
    """Write the record of a run into its directory, whole or not at all."""
    make_folder(run)
    write_json(run / RECORD, content)


def read(run: Path) -> dict[str, Any]:
    """The record in a run directory, as it was written: what somebody has edited must not get a new checksum."""
    source = validate.Source(run / RECORD, RecordError, _AGAIN)
    content = validate.read(run / RECORD, source)
    if not isinstance(content, dict) or content.get("sha256") != with_checksum(content)["sha256"]:
        raise source.fault("", "changed since the run wrote it (its checksum does not fit)")
    return content


# -- in the results ----------------------------------------------------------------------------------------------------


def publish(run: Path, results: Path) -> None:
    """Put the record of a finished run into the results."""
    content = read(run)
    make_folder(results)
    path = own_place(results, content)
    long = {key: content[key] for key in ("epochs", "step_sizes")}
    arrays = curves.split(content)
    if digest(curves.join(arrays)) != digest(long):
        raise RecordError(f"{path}: its epochs do not come back exactly from their columns; please report this")
    data = curves.packed(arrays)
    summary = {key: value for key, value in content.items() if key not in long}
    summary |= {"schema": SCHEMA, "converted_from": content["sha256"], "curves": hashlib.sha256(data).hexdigest()}
    write_atomic(path.with_suffix(".npz"), data)  # first the curves, which nobody reads without their summary
    write_atomic(path, (_readable(with_checksum(summary)) + "\n").encode())


def _key(content: dict[str, Any]) -> str:
    result = content.get("final", {}).get("train")  # that of its curve's end, which no later measurement changes
    return f"{identity(content['recipe'])} {content['data_sha256']} {content.get('changed')} {result}"


def own_place(folder: Path, content: dict[str, Any]) -> Path:
    """Where a record goes; to a longer name where another recipe, other data or another run of the same have its own.

    Two runs can have one name, and a later result must not replace an earlier one. Where it has a
    place already, it keeps it, also when the other one was removed.
    """
    path, own = folder / file_name(content), _key(content)
    longer = sorted(folder.glob(f"{glob.escape(path.stem)}_*.json"))
    there = {place: _key_in(place) for place in (path, *longer)}
    if (found := next((place for place, key in there.items() if key == own), None)) is not None:
        return found
    return path if there[path] is None else path.with_stem(f"{path.stem}_{digest(own)[:8]}")


def _key_in(path: Path) -> str | None:
    """The key of a record in the results; None where there is none, or one that is worth nothing."""
    try:
        return _key(sound(path, validate.Source(path, RecordError)))
    except (RecordError, KeyError, AttributeError, TypeError):
        return None


def _readable(content: dict[str, Any]) -> str:
    """JSON with numbers side by side, and what fits a line on one."""

    def shorter(found: re.Match) -> str:
        inner = re.sub(r"\n\s*", " ", found[2]).strip()
        if len(inner) <= _WIDTH:
            return f"{found[1]}{inner}{found[3]}"
        return found[0] if found[1] == "{" else "\n".join([found[1], *textwrap.wrap(inner, _WIDTH), found[3]])

    whole = json.dumps(content, indent=1)
    short = re.sub(r"([\[{])(\n[^\[\]{}]*)([\]}])", shorter, whole)
    return short if json.loads(short) == content else whole  # a text with brackets or many words may be in a list


# -- reading -----------------------------------------------------------------------------------------------------------


def load_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All records of a folder, and a message for each file that is none; the other files are not affected."""
    return read_records(sorted(folder.glob("*.json")))


def read_records(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """The records of some files, and a message for each file that is none."""
    records, problems = [], []
    for path in paths:
        source = validate.Source(path, RecordError, _RESTORE)
        try:
            content = sound(path, source)
            records.append(build({**content, "path": str(path)}, _arrays(content, path, source), source))
        except RecordError as error:
            problems.append(str(error))
    return records, problems


def sound(path: Path, source: validate.Source) -> dict[str, Any]:
    """The content of a file that is a record of a schema that we know, and as it was written."""
    content = validate.read(path, source)
    if not isinstance(content, dict) or "schema" not in content:
        raise RecordError(f"{path}: no record of a run (it has no schema number); move it out of the folder")
    if content["schema"] not in (WHOLE, SCHEMA):
        raise RecordError(
            f"{path}: schema version {content['schema']!r}, this program reads {WHOLE} and {SCHEMA}; use the version "
            "of timestepper that wrote it, or run it again"
        )
    if content.get("sha256") != with_checksum(content)["sha256"]:
        raise source.fault("", "the checksum does not fit, so it was edited or damaged")
    return content


def _arrays(content: dict[str, Any], path: Path, source: validate.Source) -> curves.Arrays:
    """The curves of a record, wherever they are."""
    if content["schema"] == WHOLE:
        validate.convert(content.get("epochs"), list[dict[str, Any]], source, "epochs")
        validate.convert(content.get("step_sizes"), dict[str, list], source, "step_sizes")
        return curves.split(content)
    beside = path.with_suffix(".npz")
    try:
        data = read_file(beside)
        if hashlib.sha256(data).hexdigest() != content.get("curves"):
            raise ValueError("not those of this record")
        return curves.unpacked(data)
    except Exception as error:  # of a foreign file, at which numpy and zipfile can raise anything
        raise RecordError(f"{beside}: the curves of {path.name}: {first_line(error)}; {_RESTORE}") from None
