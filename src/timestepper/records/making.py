"""A record as it is made at the end of a run, with all that is needed to trust it."""

import contextlib
import functools
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from timestepper.errors import RecordError
from timestepper.files import digest, with_checksum

WHOLE = 1  # the schema of a record that is one file


def make(
    recipe: Mapping[str, Mapping[str, Any]],
    *,
    name: str,
    epochs: Sequence[Mapping[str, Any]],
    times: Sequence[Mapping[str, Any]],
    **facts: Any,
) -> dict[str, Any]:
    """A record; ``epochs`` must reach the end of the recipe, so that a half run cannot become one.

    ``times`` are the lines of the run's timing, ``facts`` all else that the run knows. The GPU's time is shared equally
    by the runs of a sweep that have it at once; older lines do not say how many these were.
    """
    wanted = recipe["run"]["epochs"]
    if [line["epoch"] for line in epochs] != list(range(1, wanted + 1)):
        raise RecordError(f"{name}: {len(epochs)} of {wanted} epochs in its metrics; no record written")
    seconds = sum(line["seconds"] for line in times)
    shared = [line["seconds"] / line["sharing"] for line in times if "sharing" in line]
    devices = list(dict.fromkeys([*(line["device"] for line in times if "device" in line), facts["device"]]))
    known = len(shared) == len(times) and len(devices) == 1 and not devices[0].startswith("CPU")
    content = {
        "schema": WHOLE,
        "kind": "training",
        "name": name,
        "seed": recipe["run"]["seed"],
        "recipe": recipe,
        **facts,
        "device": ", then ".join(devices),  # a run may go on on another machine
        "epochs": epochs,
        "wall_seconds": round(seconds, 1),
        **({"gpu_seconds": round(sum(shared) * facts["world"], 1)} if known else {}),
        "commit": commit(),
        "commits": {line.get("commit", "unknown"): line["step"] for line in times},  # up to which update each computed
        "versions": versions(),
    }
    return with_checksum(content)


def file_name(record: Mapping[str, Any]) -> str:
    """A name that says what was run; recipes that differ in ``log_steps`` or ``evaluate_epochs`` alone share one."""
    settings = {key: value for key, value in record["recipe"].items() if key != "run"}
    settings["run"] = {"epochs": record["recipe"]["run"]["epochs"]}
    return label(record["name"], record["recipe"], record["seed"], settings) + ".json"


def label(name: str, recipe: Mapping[str, Any], seed: int, settings: Mapping[str, Any]) -> str:
    """What was run, in words as far as they go; the rest of the settings as the beginning of their digest."""
    parts = (name.replace("/", "-"), recipe["model"]["name"].replace("/", "-"), recipe["controller"]["kind"])
    return f"{'_'.join(parts)}_{digest(settings)[:8]}_seed{seed}"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter, where they are installed."""
    found = {"python": platform.python_version()}
    for package in ("timestepper", "torch", "torchvision", "timm", "numpy"):
        with contextlib.suppress(PackageNotFoundError):  # a source folder on the path is no installation
            found[package] = version(package)
    return found


@functools.cache
def commit() -> str:
    """The commit of the source, with ``+`` where files are changed; outside a checkout $TIMESTEPPER_COMMIT.

    As of the first time that it is asked: what this process has loaded stays, whatever is committed while it runs.
    An installed package may lie in somebody else's checkout, which does not track it.
    """
    here = Path(__file__).resolve().parent
    try:
        _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
        head = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("TIMESTEPPER_COMMIT", "unknown")
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    """What git says of the checkout around the folder, whatever repository the environment names; it writes nothing."""
    command = ["git", "--no-optional-locks", *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=True, timeout=20)
    return done.stdout.strip()
