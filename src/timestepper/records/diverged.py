"""Runs that diverged, in a folder of their own beside the records.

Without them a mean over the runs that ended looks better than it is. A sweep does not try such a run again, and one
that ends when it is tried again has diverged all the same: whoever knows why removes the file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper import validate
from timestepper.errors import RecordError
from timestepper.files import make_folder, with_checksum, write_json
from timestepper.records.files import own_place, sound
from timestepper.records.making import WHOLE, commit, versions
from timestepper.records.record import Result, check_recipe
from timestepper.validate import limited

FOLDER = "diverged"


@dataclass(frozen=True, kw_only=True)
class Diverged(Result):
    """One of them; ``step`` is the update that could not be made."""

    kind: str = limited(choices=("diverged",))
    step: int = limited(least=0)
    error: str


def publish_diverged(recipe: Mapping[str, Mapping[str, Any]], results: Path, **facts: Any) -> None:
    """Write down that a run diverged; ``facts`` are its name, data, device, processes, step and error."""
    content = {"schema": WHOLE, "kind": "diverged", "seed": recipe["run"]["seed"], "recipe": recipe, **facts}
    content = with_checksum(content | {"commit": commit(), "versions": versions()})
    make_folder(results / FOLDER)
    write_json(own_place(results / FOLDER, content), content)


def load_diverged(results: Path) -> tuple[list[Diverged], list[str]]:
    """All of a folder of results, and a message for each file that is none."""
    found, problems = [], []
    folder = results / FOLDER
    try:
        paths = sorted(folder / name for name in os.listdir(folder) if name.endswith(".json"))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"{folder}: cannot be read ({error.strerror}); runs that diverged may be missing, look at it"]
    for path in paths:
        source = validate.Source(path, RecordError, "restore the file or remove it")
        try:
            run = validate.build(Diverged, {**sound(path, source), "path": str(path)}, source, extra=True)
            check_recipe(run, source)
            found.append(run)
        except RecordError as error:
            problems.append(str(error))
    return found, problems


def skipped(number: int, runs: int, results: Path) -> str:
    """What a command says that does not train them again."""
    advice = f"to train them again, remove their files in {results / FOLDER}"
    return f"{number} of {runs} runs diverged and are skipped; {advice}"
