"""Sets of runs: files that list recipes, what to vary in them and the seeds, one for each table, figure and study."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from timestepper import records, validate
from timestepper.errors import RecipeError, UnknownNameError
from timestepper.experiment.load import FOLDERS, as_dict, is_set, load, sections
from timestepper.experiment.schema import Recipe
from timestepper.validate import Source, limited

MEASURES = ("noise", "stability")


@dataclass(frozen=True)
class _Train:
    """One recipe of a set, what to vary in it, and the GPU hours that one run is expected to take."""

    base: str
    hours: float = limited(least=0)
    overrides: tuple[str, ...] = ()
    vary: dict[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Set:
    """What the file of a set may say."""

    set: str
    title: str
    seeds: tuple[int, ...] = (0,)
    short: tuple[str, ...] = ()
    measure: tuple[str, ...] = limited((), choices=MEASURES)
    train: tuple[_Train, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """One run that sets ask for. ``hours`` is the GPU time that their files expect."""

    recipe: Recipe
    name: str
    hours: float
    measures: tuple[str, ...]
    sets: tuple[str, ...]

    @property
    def identity(self) -> str:
        return identity(as_dict(self.recipe))

    @property
    def folder(self) -> str:
        """The name of its run directory, the same whatever the free settings."""
        settings = json.loads(self.identity)
        settings["run"].pop("seed", None)  # stands at the end of the name
        return records.label(self.name, as_dict(self.recipe), self.recipe.run.seed, settings)


def names() -> dict[str, Path]:
    """Every shipped set by its name, the paper's first."""
    files = [path for folder in FOLDERS for path in sorted(folder.rglob("*.toml")) if is_set(path)]
    return {path.stem: path for path in sorted(files, key=lambda path: (path.parent.name != "paper", path.stem))}


def open_sets(name: str, *, short: bool = False, overrides: tuple[str, ...] = ()) -> list[Wanted]:
    """The runs of a set by name or file, of ``all`` sets of the paper, or of ``everything``; each run once."""
    known = names()
    if name in ("all", "everything"):
        paths = [path for path in known.values() if name == "everything" or path.parent.name == "paper"]
    elif name in known:
        paths = [known[name]]
    elif os.path.isfile(name):
        paths = [Path(name)]
    else:
        raise UnknownNameError(f"unknown set {name!r}; known are {', '.join([*known, 'all', 'everything'])}")
    if short and len(paths) == 1 and (listed := _read(paths[0])).train and not listed.short:
        raise RecipeError(f"{paths[0]}: has no short schedule; leave --schedule short out")
    found: dict[str, Wanted] = {}
    for wanted in itertools.chain.from_iterable(_expand(path, short, overrides) for path in paths):
        earlier = found.get(wanted.identity)
        if earlier is not None:
            both = tuple(dict.fromkeys(earlier.sets + wanted.sets))
            measures = tuple(dict.fromkeys(earlier.measures + wanted.measures))
            wanted = replace(earlier, sets=both, measures=measures)
        found[wanted.identity] = wanted
    return list(found.values())


def identity(recipe: Mapping[str, Mapping[str, Any]]) -> str:
    """All that decides what a recipe learns and is not at its default, as JSON.

    A version with one more setting so finds the records, and the half-finished runs, of those before it. A run of an
    older default, which has the same folder, is told by the recipe in it.
    """
    settled: dict[str, dict[str, Any]] = {}
    for section, fields in sections(Recipe()):
        given = recipe.get(section, {})
        settled[section] = {
            field.name: given[field.name]
            for field, default in fields
            if not field.metadata["free"] and json.dumps(given.get(field.name, default)) != json.dumps(default)
        }
    return json.dumps(settled, sort_keys=True)


def _expand(path: Path, short: bool, overrides: tuple[str, ...]) -> Iterator[Wanted]:
    listed = _read(path)
    for number, train in enumerate(listed.train, 1):
        for values in itertools.product(*train.vary.values()):
            varied = [f"{key}={value}" for key, value in zip(train.vary, values, strict=True)]
            own = [*train.overrides, *varied]
            changed = [*own, *(listed.short if short else ()), *overrides]
            for given in changed:
                if given.partition("=")[0].strip() == "run.seed":
                    raise RecipeError(
                        f"{path}: train[{number}]: {given} would change nothing, because the file's seeds decide; "
                        "leave it out, or list the seed there"
                    )
            hours = train.hours * _length(train.base, changed) / _length(train.base, own)
            for seed in listed.seeds:
                recipe = load(train.base, [*changed, f"run.seed={seed}"])
                yield Wanted(recipe, train.base, hours, listed.measure, (listed.set,))


def _length(base: str, overrides: list[str]) -> int:
    return load(base, overrides).run.epochs


def _read(path: Path) -> _Set:
    source = Source(path, RecipeError)
    return validate.build(_Set, validate.read(path, source), source)
