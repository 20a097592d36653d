"""Which runs there are: of recipes, or of whole sets, with every combination of values and every seed."""

import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timestepper.errors import DataError, RecipeError
from timestepper.recipe import sets
from timestepper.recipe.load import differences, is_set, load, short_name
from timestepper.recipe.schema import Recipe
from timestepper.runs.run import Run, folder_name, own_folder, set_folder

if TYPE_CHECKING:
    from timestepper.data import Dataset

RUNS = Path("runs")
_MOST = 10_000  # runs of one recipe: more of them are a slip of the hand


def open_sets(name: str, *, short: bool = False, overrides: tuple[str, ...] = (), out: Path = RUNS) -> list[Run]:
    """The runs of a set by name or file, of ``all`` sets of the paper, or of ``everything``; each run once."""
    found: dict[str, Run] = {}
    for one in sets.read_sets(name, short):
        for base, recipe, hours in one.recipes(short, overrides):
            name = short_name(base)  # a file's folder, which is another on the next machine, is not part of it
            label = set_folder(name, recipe)
            path = own_folder(out / label, out / set_folder(base, recipe), recipe)
            run = Run(recipe, name, path, label, hours=hours, measures=one.measure, sets=(one.set,))
            first = found.setdefault(run.identity, run)
            first.sets = tuple(dict.fromkeys(first.sets + run.sets))
            first.measures = tuple(dict.fromkeys(first.measures + run.measures))
    return list(found.values())


def split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Recipes and overrides; an override is what has a ``=`` in it and is no file whose name ends in ``.toml``."""
    recipes: list[str] = []
    overrides: list[str] = []
    for argument in arguments:
        is_override = "=" in argument and not (argument.endswith(".toml") and os.path.isfile(argument))
        (overrides if is_override else recipes).append(argument)
    return recipes, overrides


def expand(
    references: Sequence[str],
    overrides: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    checkpoint_seconds: float,
    override: bool = False,
) -> list[Run]:
    """All runs, every recipe checked. A value such as ``none,lstm`` stands for one run with each part.

    The runs of a set lie where ``reproduce`` looks for them. Of a set, ``seeds`` chooses; with a recipe, it multiplies.
    Runs save by the clock, unless an override of ``run.checkpoint_…`` brings the recipe's own rhythm back.
    """
    found: dict[Path, Run] = {}
    for reference in references:
        if reference in sets.names() or (os.path.isfile(reference) and is_set(Path(reference))):
            runs = open_sets(reference, overrides=tuple(overrides), out=out)
            runs = [run for run in runs if not seeds or run.recipe.run.seed in seeds]
        else:
            runs = _of_recipe(reference, overrides, seeds, out, override)
        for run in runs:
            if not chooses_checkpoints(overrides):
                run.recipe = by_the_clock(run.recipe, checkpoint_seconds)
            if found.setdefault(run.path, run).recipe != run.recipe:  # two sets may ask for the same run
                raise RecipeError(
                    f"two different recipes would share the folder {run.path}; give their files other names"
                )
    if lost := sorted({*seeds} - {run.recipe.run.seed for run in found.values()}):
        raise RecipeError(
            f"{' '.join(references)}: no run has seed {', '.join(map(str, lost))}, and of a set --seeds only chooses; "
            "list them in a set of your own, or give --seeds with the set's recipe and overrides"
        )
    return list(found.values())


def _of_recipe(reference: str, overrides: Sequence[str], seeds: Sequence[int], out: Path, override: bool) -> list[Run]:
    """Below the name of the recipe: what all runs change in it, one folder for each setting that varies, the seed."""
    name, plain = short_name(reference), load(reference)
    choices = {text.partition("=")[0].strip(): _alternatives(text) for text in overrides}  # of a key, the last one
    varied = sorted(key for key, options in choices.items() if len(options) > 1)
    if seeds:
        choices["run.seed"] = [f"run.seed={seed}" for seed in seeds]
        varied = [key for key in varied if key != "run.seed"]
    if (count := math.prod(map(len, choices.values()))) > _MOST:
        raise RecipeError(f"{reference}: these are {count:,} runs, more than {_MOST:,}; give fewer values")
    runs = []
    for chosen in itertools.product(*choices.values()):
        recipe = load(reference, chosen)
        seed = f"seed{recipe.run.seed}" if seeds else ""
        parted = {*varied, "run.seed"} if seeds else {*varied}
        common = [f"{key}={value}" for key, _, value in differences(plain, recipe) if key not in parted]
        own = [folder_name(common), *(folder_name([f"{key}={attrgetter(key)(recipe)}"]) for key in varied), seed]
        older = [*(folder_name([text]) for text in chosen if text.partition("=")[0] in varied), seed]
        path = own_folder(out.joinpath(name, *own), out.joinpath(name, *older), recipe, override)
        runs.append(Run(recipe, name, path, str(path.relative_to(out))))
    return runs


class Shared:
    """Data sets, each opened once and, where it fits, put on a device once; torch is awaited with the first."""

    def __init__(self) -> None:
        self._open: dict[Any, Dataset] = {}

    def dataset(self, recipe: Recipe, device: Any = "cpu") -> "Dataset":
        from timestepper.data import ArrayImages
        from timestepper.runs import build

        wanted = recipe.data
        key = (wanted.name, wanted.root, wanted.size, wanted.resize, str(device))
        if key not in self._open:
            found = build.dataset(recipe)
            if isinstance(found.train, ArrayImages) and isinstance(found.test, ArrayImages):
                found = replace(found, train=found.train.to(device), test=found.test.to(device))
            self._open[key] = found
        return self._open[key]


def has_images(run: Run, data_sha256: str, dataset: "Callable[[Recipe], Dataset]") -> bool:
    """Whether a record is of a run's data: with an image folder, of the images that are there now, if they are."""
    if run.recipe.data.name != "folder":
        return True
    try:
        return dataset(run.recipe).sha256 == data_sha256
    except DataError:
        return True


def by_the_clock(recipe: Recipe, seconds: float) -> Recipe:
    """Saved by the clock and at its end: saving after every epoch would take turns away from the other runs."""
    clock = replace(recipe.run, checkpoint_steps=0, checkpoint_epochs=0, checkpoint_seconds=seconds)
    return replace(recipe, run=clock)


def chooses_checkpoints(overrides: Iterable[str]) -> bool:
    """Whether the user has said when to save."""
    return any(override.startswith("run.checkpoint_") for override in overrides)


def parse_seeds(text: str) -> list[int]:
    """``0,1,2`` or ``0-2``."""
    seeds: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        found = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
        if found is None or not 0 <= int(found[2] or found[1]) - int(found[1]) < 1000:
            raise RecipeError(
                f"--seeds {text[:60]!r} is not a list of whole numbers such as 0,1,2 or 0-2 (1000 at most)"
            )
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    return seeds


def _alternatives(override: str) -> list[str]:
    key, _, value = override.partition("=")
    parts = [value] if any(mark in value for mark in "[\"'") else re.split(r",(?![^(]*\))", value)
    return [f"{key}={part.strip()}" for part in parts]
