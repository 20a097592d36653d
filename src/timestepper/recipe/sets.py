"""Sets of runs: files that list recipes, what to vary in them and the seeds, one for each table, figure and study."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timestepper import validate
from timestepper.errors import RecipeError, UnknownNameError
from timestepper.recipe.load import FOLDERS, is_set, load, sections
from timestepper.recipe.schema import Recipe
from timestepper.validate import Source, limited

MEASURES = ("noise", "stability")


@dataclass(frozen=True)
class Varied:
    """One recipe of a set, what to vary in it, and the GPU hours that one run is expected to take."""

    base: str
    hours: float = limited(least=0)
    overrides: tuple[str, ...] = ()
    vary: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSet:
    """What the file of a set says."""

    set: str
    title: str
    seeds: tuple[int, ...] = (0,)
    short: tuple[str, ...] = ()
    measure: tuple[str, ...] = limited((), choices=MEASURES)
    train: tuple[Varied, ...] = ()

    def recipes(self, short: bool, overrides: tuple[str, ...]) -> Iterator[tuple[str, Recipe, float]]:
        """Name of the base, recipe and expected GPU hours of every run."""
        every = ((name, field) for name, settings in sections(Recipe()) for field, _ in settings)
        free = {f"{name}.{field.name}" for name, field in every if field.metadata["free"]}
        for number, train in enumerate(self.train, 1):
            if idle := sorted(free.intersection(train.vary)):
                raise RecipeError(
                    f"set {self.set}: train[{number}]: vary: {', '.join(idle)} makes no other runs, because it changes "
                    "nothing of what is learned; leave it out and give it on the command line"
                )
            for values in itertools.product(*train.vary.values()):
                own = [*train.overrides, *(f"{key}={value}" for key, value in zip(train.vary, values, strict=True))]
                changed = [*own, *(self.short if short else ()), *overrides]
                for given in changed:
                    if given.partition("=")[0].strip() == "run.seed":
                        raise RecipeError(
                            f"set {self.set}: train[{number}]: {given} would change nothing, because the set's seeds "
                            "decide; leave it out, or list the seed there"
                        )
                hours = train.hours * load(train.base, changed).run.epochs / load(train.base, own).run.epochs
                for seed in self.seeds:
                    yield train.base, load(train.base, [*changed, f"run.seed={seed}"]), hours


def names() -> dict[str, Path]:
    """Every shipped set by its name, the paper's first."""
    files = [path for folder in FOLDERS for path in sorted(folder.rglob("*.toml")) if is_set(path)]
    return {path.stem: path for path in sorted(files, key=lambda path: (path.parent.name != "paper", path.stem))}


def read_sets(name: str, short: bool = False) -> list[RunSet]:
    """A set by name or file, ``all`` sets of the paper, or ``everything``; ``short`` only where there is such a way."""
    known = names()
    if name in ("all", "everything"):
        paths = [path for path in known.values() if name == "everything" or path.parent.name == "paper"]
    elif name in known or os.path.isfile(name):
        paths = [known.get(name, Path(name))]
    else:
        raise UnknownNameError(f"unknown set {name!r}; known are {', '.join([*known, 'all', 'everything'])}")
    found = [validate.build(RunSet, validate.read(path, source := Source(path, RecipeError)), source) for path in paths]
    if short and len(found) == 1 and found[0].train and not found[0].short:
        raise RecipeError(f"{paths[0]}: has no short schedule; leave --schedule short out")
    return found
