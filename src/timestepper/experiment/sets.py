"""Sets of runs: files that list recipes, what to vary in them and the seeds, one for each table, figure and study."""

import itertools
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from timestepper.errors import RecipeError, UnknownNameError, first_line
from timestepper.experiment import record
from timestepper.experiment.load import FOLDERS, as_dict, is_set, load, sections
from timestepper.experiment.schema import Recipe

MEASURES = ("noise", "stability")
# What a key holds; of lists and tables also what is in them.
_SET_KEYS = {
    "set": (str, None),
    "title": (str, None),
    "seeds": (list, int),
    "short": (list, str),
    "measure": (list, str),
    "train": (list, dict),
}
_TRAIN_KEYS = {"base": (str, None), "overrides": (list, str), "vary": (dict, list), "hours": (float, None)}
_WORDS = {str: "text", int: "whole number", float: "number", list: "list", dict: "table"}


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
        return record.label(self.name, as_dict(self.recipe), self.recipe.run.seed, settings)


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
    if short and len(paths) == 1 and "train" in (table := _read(paths[0])) and not table.get("short"):
        raise RecipeError(f"{paths[0]}: has no schedule shorter than its own; leave --schedule short out")
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
    table = _read(path)
    for number, train in enumerate(table.get("train", []), 1):
        where = f"{path}: train {number}"
        _check(train, _TRAIN_KEYS, where, required=("base", "hours"))
        vary = train.get("vary", {})
        for values in itertools.product(*vary.values()):
            varied = [f"{key}={value}" for key, value in zip(vary, values, strict=True)]
            own = [*train.get("overrides", []), *varied]
            changed = [*own, *(table.get("short", []) if short else []), *overrides]
            for given in changed:
                if given.partition("=")[0].strip() == "run.seed":
                    raise RecipeError(
                        f"{where}: {given} would change nothing, because the file's seeds decide; leave it out, or "
                        "list the seed there"
                    )
            hours = train["hours"] * _length(train["base"], changed) / _length(train["base"], own)
            for seed in table.get("seeds", [0]):
                recipe = load(train["base"], [*changed, f"run.seed={seed}"])
                yield Wanted(recipe, train["base"], hours, tuple(table.get("measure", ())), (table["set"],))


def _length(base: str, overrides: list[str]) -> int:
    return load(base, overrides).run.epochs


def _read(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError(f"{path}: not readable as TOML: {first_line(error)}") from None
    _check(table, _SET_KEYS, str(path), required=("set", "title"))
    for measure in table.get("measure", ()):
        if measure not in MEASURES:
            raise RecipeError(f"{path}: measure {measure!r} is not known; allowed are {', '.join(MEASURES)}")
    return table


def _check(table: Mapping[str, Any], known: Mapping[str, tuple], where: str, required: tuple[str, ...]) -> None:
    for key, value in table.items():
        if key not in known:
            raise RecipeError(f"{where}: unknown key {key}; allowed are {', '.join(known)}")
        kind, inner = known[key]
        if not _is(value, kind):
            raise RecipeError(f"{where}: {key} must be a {_WORDS[kind]}, not {value!r}")
        for item in () if inner is None else value.values() if kind is dict else value:
            if not _is(item, inner):
                raise RecipeError(f"{where}: {key} holds {item!r}, which is no {_WORDS[inner]}")
    for key in required:
        if key not in table:
            raise RecipeError(f"{where}: key {key} is missing")


def _is(value: Any, kind: type) -> bool:
    """TOML knows true from 1; a whole number will do as a number."""
    return isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
