"""One run: what to train, the folder that it lives in, and where it stands. Without torch."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper import records
from timestepper.engine.rundir import CHECKPOINTS, METRICS, RECIPE, STATUS, TIMING, read_status
from timestepper.errors import RecipeError, TimestepperError
from timestepper.files import digest
from timestepper.recipe.load import as_dict, differences, identity, load, load_file, short_name
from timestepper.recipe.schema import Recipe

WAITING, RUNNING, FINISHED, INTERRUPTED, FAILED = "waiting", "running", "finished", "interrupted", "failed"


@dataclass(eq=False)
class Run:
    """One run. Whoever plans, trains or measures it keeps ``state`` and ``message`` up to date."""

    recipe: Recipe
    name: str  # of the recipe, for the record
    path: Path  # the run directory
    label: str = ""  # what progress calls it
    override: bool = False  # go on although the recipe has changed
    results: Path | None = None  # folder that its record goes to as well, or that it diverged
    hours: float = 0.0  # of GPU time, that are still expected
    measures: tuple[str, ...] = ()  # what the record that goes there shall have beside the training
    sets: tuple[str, ...] = ()  # the sets that ask for it
    state: str = WAITING
    message: str = ""
    sharing: int = 1  # runs that have its GPU together, itself among them

    @property
    def identity(self) -> str:
        """What it shares with the record of the same run."""
        return identity(as_dict(self.recipe))

    @property
    def is_finished(self) -> bool:
        """Whether its folder holds this very recipe, trained to its end, and its records."""
        if (read_status(self.path) or {}).get("state") != "finished" or not (self.path / records.RECORD).exists():
            return False
        return holds(self.path, self.recipe)

    @property
    def images(self) -> dict[str, Any]:
        """What a finished run's folder says of the image files that it was trained with; nothing for other data."""
        said = (read_status(self.path) or {}).get("images")
        return said if isinstance(said, dict) else {}

    def carried(self) -> list[Path]:
        """The files with which it goes on, or is measured, on another machine: without old checkpoints and exports.

        First the checkpoint: logs that are copied while it trains may know more than it, but not less.
        """
        from timestepper.engine.checkpoint import Checkpoints

        newest = Checkpoints(self.path / CHECKPOINTS).paths()[-1:]
        beside = [self.path / name for name in (METRICS, TIMING, RECIPE, records.RECORD, STATUS)]
        return [*newest, *(path for path in beside if path.exists())]

    def publish(self) -> None:
        """Put the record of a finished run where it was asked for."""
        if self.results is not None:
            records.publish(self.path, self.results)


def holds(path: Path, recipe: Recipe) -> bool:
    """Whether a folder holds a run of this very recipe."""
    try:
        return not differences(load_file(path / RECIPE), recipe)
    except TimestepperError:
        return False


def set_folder(name: str, recipe: Recipe) -> str:
    """The folder of a run that a set asks for, the same whatever the free settings."""
    told = as_dict(recipe)
    settings = json.loads(identity(told))
    settings["run"].pop("seed", None)  # stands at the end of the name
    return records.label(name, told, recipe.run.seed, settings)


def default_folder(reference: str, recipe: Recipe, override: bool = False) -> Path:
    """Where ``train`` puts a recipe with overrides: ``runs/NAME``, and below it what is not as the recipe says."""
    folder = Path("runs") / short_name(reference)
    changed = [f"{key}={value}" for key, _, value in differences(load(reference), recipe)]
    return own_folder(folder / folder_name(changed) if changed else folder, folder, recipe, override)


def own_folder(own: Path, older: Path, recipe: Recipe, override: bool = False) -> Path:
    """``own``, or ``older`` where this very run lies there already: the name that an earlier version gave it.

    What else lies there is another run. ``override`` may mean it, but would train on in it: so the user has to name it.
    """
    if own == older or os.path.isfile(own / RECIPE):
        return own
    if holds(older, recipe):
        return older
    if override and os.path.isfile(older / RECIPE):
        raise RecipeError(
            f"{own} holds no run that --override could go on with; leave it out, or name the run that is to change: "
            f"timestepper train … --override --run-dir {older}"
        )
    return own


def folder_name(overrides: Iterable[str]) -> str:
    """Overrides as the name of a folder, which file systems limit in bytes."""
    name = re.sub(r"[^\w.=+,-]", "-", ",".join(overrides))
    if len(name) <= 120 and len(name.encode()) <= 200:
        return name
    return f"{name[:100].encode()[:200].decode(errors='ignore')}-{digest(name)[:8]}"
