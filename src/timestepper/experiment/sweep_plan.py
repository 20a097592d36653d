"""The runs of a sweep: recipes, or whole sets of runs, with every combination of values and every seed."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from timestepper.errors import RecipeError
from timestepper.experiment import sets
from timestepper.experiment.load import as_dict, is_set, load, short_name
from timestepper.experiment.schema import Recipe


@dataclass(frozen=True)
class Entry:
    """One run of a sweep."""

    label: str  # the folder below the sweep's own, and what progress calls the run
    name: str  # the recipe's name, for the record
    recipe: Recipe
    path: Path

    @property
    def identity(self) -> str:
        """What it shares with the record of the same run."""
        return sets.identity(as_dict(self.recipe))


def split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Recipes and overrides; an override is what has a ``=`` in it."""
    given = list(arguments)
    return [a for a in given if "=" not in a], [a for a in given if "=" in a]


def expand(
    references: Sequence[str], overrides: Sequence[str], seeds: Sequence[int], out: Path, checkpoint_seconds: float
) -> list[Entry]:
    """All runs, every recipe checked. A value such as ``none,lstm`` stands for one run with each part.

    The runs of a set lie where ``reproduce`` looks for them. Of a set, ``seeds`` chooses; with a recipe, it multiplies.
    Runs save by the clock, unless an override of ``run.checkpoint_…`` brings the recipe's own rhythm back.
    """
    choices = [_alternatives(override) for override in overrides]
    own_rhythm = chooses_checkpoints(overrides)
    entries = []
    for reference in references:
        runs = _of_set(reference, overrides, seeds) if _is_set(reference) else _of_recipe(reference, choices, seeds)
        for label, name, recipe in runs:
            clocked = recipe if own_rhythm else by_the_clock(recipe, checkpoint_seconds)
            entries.append(Entry(label, name, clocked, out / label))
    return _each_once(entries)


def by_the_clock(recipe: Recipe, seconds: float) -> Recipe:
    """Saved by the clock and at its end: saving after every epoch would take turns away from the other runs."""
    clock = replace(recipe.run, checkpoint_steps=0, checkpoint_epochs=0, checkpoint_seconds=seconds)
    return replace(recipe, run=clock)


def chooses_checkpoints(overrides: Iterable[str]) -> bool:
    """Whether the user has said when to save."""
    return any(override.startswith("run.checkpoint_") for override in overrides)


def _of_set(reference: str, overrides: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, str, Recipe]]:
    for wanted in sets.open_sets(reference, overrides=tuple(overrides)):
        if not seeds or wanted.recipe.run.seed in seeds:
            yield wanted.folder, wanted.name, wanted.recipe


def _of_recipe(reference: str, choices: list[list[str]], seeds: Sequence[int]) -> Iterator[tuple[str, str, Recipe]]:
    name = short_name(reference)
    for chosen in itertools.product(*choices):
        varied = [text for text, options in zip(chosen, choices, strict=True) if len(options) > 1]
        for seed in seeds or (None,):
            own = [] if seed is None else [f"run.seed={seed}"]
            parts = [name, *map(_folder_name, varied), *([] if seed is None else [f"seed{seed}"])]
            yield "/".join(parts), name, load(reference, [*chosen, *own])


def _is_set(reference: str) -> bool:
    return reference in sets.names() or (os.path.isfile(reference) and is_set(Path(reference)))


def parse_seeds(text: str) -> list[int]:
    """``0,1,2`` or ``0-2``."""
    seeds: list[int] = []
    for part in filter(None, text.replace(" ", "").split(",")):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise RecipeError(f"--seeds {text!r} is not a list of whole numbers such as 0,1,2 or 0-2")
        seeds += range(int(found[1]), int(found[2] or found[1]) + 1)
    return seeds


def _alternatives(override: str) -> list[str]:
    key, _, value = override.partition("=")
    parts = [value] if any(mark in value for mark in "[\"'") else re.split(r",(?![^(]*\))", value)
    return [f"{key}={part.strip()}" for part in parts]


def _folder_name(override: str) -> str:
    return re.sub(r"[^\w.=+-]", "-", override)


def _each_once(entries: list[Entry]) -> list[Entry]:
    """Sets may ask for the same run; different runs cannot share a folder."""
    found: dict[Path, Entry] = {}
    for entry in entries:
        if found.setdefault(entry.path, entry).recipe != entry.recipe:
            raise RecipeError(
                f"two different recipes would share the folder {entry.path}; give their files other names"
            )
    return list(found.values())
