"""The runs of a sweep: every recipe, every combination of values, every seed; each with a folder of its own."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from timestepper.errors import RecipeError
from timestepper.experiment.load import load, short_name
from timestepper.experiment.schema import Recipe


@dataclass(frozen=True)
class Entry:
    """One run of a sweep."""

    label: str  # the folder below the sweep's own, and what progress calls the run
    name: str  # the recipe's name, for the record
    recipe: Recipe
    path: Path


def split(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Recipes and overrides; an override is what has a ``=`` in it."""
    given = list(arguments)
    return [a for a in given if "=" not in a], [a for a in given if "=" in a]


def expand(
    references: Sequence[str], overrides: Sequence[str], seeds: Sequence[int], out: Path, checkpoint_seconds: float
) -> list[Entry]:
    """All runs, every recipe checked. A value such as ``none,lstm`` stands for one run with each part.

    Runs save by the clock and at their end: saving after every epoch would take turns away from the others. An
    override of ``run.checkpoint_…`` brings the recipe's own rhythm back.
    """
    choices = [_alternatives(override) for override in overrides]
    by_clock = not any(override.startswith("run.checkpoint_") for override in overrides)
    entries = []
    for reference, chosen, seed in itertools.product(references, itertools.product(*choices), seeds or (None,)):
        varied = [text for text, options in zip(chosen, choices, strict=True) if len(options) > 1]
        extra = [] if seed is None else [f"run.seed={seed}"]
        recipe, name = load(reference, [*chosen, *extra]), short_name(reference)
        if by_clock:
            run = replace(recipe.run, checkpoint_steps=0, checkpoint_epochs=0, checkpoint_seconds=checkpoint_seconds)
            recipe = replace(recipe, run=run)
        parts = [name, *map(_folder_name, varied), *([] if seed is None else [f"seed{seed}"])]
        entries.append(Entry("/".join(parts), name, recipe, out.joinpath(*parts)))
    _refuse_twins(entries)
    return entries


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
    parts = [value] if any(mark in value for mark in "[\"'") else value.split(",")
    return [f"{key}={part.strip()}" for part in parts]


def _folder_name(override: str) -> str:
    return re.sub(r"[^\w.=+-]", "-", override)


def _refuse_twins(entries: list[Entry]) -> None:
    seen: dict[Path, Entry] = {}
    for entry in entries:
        if entry.path in seen:
            raise RecipeError(f"{entry.label} is asked for twice; two runs cannot share the folder {entry.path}")
        seen[entry.path] = entry
