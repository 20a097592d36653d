"""The record of a finished run, with all that is needed to trust it. The only writer of results/."""

import contextlib
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from timestepper.engine.metrics import read_lines
from timestepper.engine.rundir import TIMING
from timestepper.errors import RecordError, first_line
from timestepper.experiment.load import as_dict
from timestepper.experiment.schema import Recipe
from timestepper.files import digest, make_folder, with_checksum, write_atomic

SCHEMA = 1
RECORD = "record.json"


def make(
    recipe: Recipe,
    *,
    name: str,
    run: Path,
    data_sha256: str,
    device: str,
    epochs: list[dict[str, Any]],
    final: dict[str, Any],
    step_sizes: dict[str, Any],
    world: int,
) -> dict[str, Any]:
    """A record; ``epochs`` must reach the end of the recipe, so that a half run cannot become one."""
    if [line["epoch"] for line in epochs] != list(range(1, recipe.run.epochs + 1)):
        raise RecordError(f"{run} has {len(epochs)} of {recipe.run.epochs} epochs in its metrics; no record written")
    times = list(read_lines(run / TIMING))
    content = {
        "schema": SCHEMA,
        "kind": "training",
        "name": name,
        "seed": recipe.run.seed,
        "recipe": as_dict(recipe),
        "data_sha256": data_sha256,
        "final": final,
        "epochs": epochs,
        "step_sizes": step_sizes,
        "wall_seconds": round(sum(line["seconds"] for line in times), 1),
        "world": world,
        "device": device,
        "commit": commit(),
        "commits": {line.get("commit", "unknown"): line["step"] for line in times},  # up to which update each computed
        "versions": versions(),
    }
    return with_checksum(content)


def write(record: dict[str, Any], path: Path) -> Path:
    """Write a record, whole or not at all."""
    make_folder(path.parent)
    write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())
    return path


def read(run: Path) -> dict[str, Any]:
    """The record in a run directory, as it was written: what somebody has edited must not get a new checksum."""
    path = run / RECORD
    again = "remove it, and the same command makes it again from the run's last checkpoint"
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not readable ({first_line(error)}); {again}") from None
    if not isinstance(content, dict) or content.get("sha256") != with_checksum(content)["sha256"]:
        raise RecordError(f"{path}: changed since the run wrote it (its checksum does not fit); {again}")
    return content


def publish(run: Path, results: Path) -> None:
    """Copy the record of a finished run to the results."""
    content = read(run)
    write(content, results / file_name(content))


def file_name(record: dict[str, Any]) -> str:
    """A name that says what was run; two different recipes never share one."""
    settings = {key: value for key, value in record["recipe"].items() if key != "run"}
    settings["run"] = {"epochs": record["recipe"]["run"]["epochs"]}
    return label(record["name"], record["recipe"], record["seed"], settings) + ".json"


def label(name: str, recipe: dict[str, Any], seed: int, settings: dict[str, Any]) -> str:
    """What was run, in words as far as they go; the rest of the settings as the beginning of their digest."""
    parts = (name.replace("/", "-"), recipe["model"]["name"].replace("/", "-"), recipe["controller"]["kind"])
    return f"{'_'.join(parts)}_{digest(settings)[:8]}_seed{seed}"


def versions() -> dict[str, str]:
    """Of Python and the packages that matter, where they are installed."""
    found = {"python": platform.python_version()}
    for package in ("timestepper", "torch", "torchvision", "timm", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # a source folder on the path is no installation
            found[package] = version(package)
    return found


def commit() -> str:
    """The commit of the source, with ``+`` where files are changed; outside a checkout $TIMESTEPPER_COMMIT."""
    here = Path(__file__).resolve().parent
    try:
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("TIMESTEPPER_COMMIT", "unknown")
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
