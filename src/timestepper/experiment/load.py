"""Recipes: TOML files and ``key=value`` overrides in, a checked :class:`Recipe` out, and back."""

import difflib
import json
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from timestepper.errors import RecipeError, first_line
from timestepper.experiment.controller import check_controller
from timestepper.experiment.schema import Recipe

_LARGEST = 2**63 - 1  # of whole numbers
_PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (_PACKAGE.parents[1] / "recipes", _PACKAGE / "recipes")


def load(reference: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a file, or a shipped one by a name such as ``smoke/digits``, with overrides applied."""
    path = find(reference)
    text = _read(path)
    if lists_runs(text):
        raise _no_recipe(path)
    return loads(text, str(path), overrides)


def loads(text: str, source: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a TOML text; ``source`` names it in errors."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, brackets in brackets
        raise RecipeError(f"{source}: not valid TOML: {first_line(error)}") from None
    origins: dict[str, str] = {}
    for override in overrides:
        key, value = _parse_override(override)
        section, _, name = key.partition(".")
        if not isinstance(tables.setdefault(section, {}), dict):
            raise RecipeError(f"{source}: {section} must be a section, written [{section}]")
        tables[section][name] = value
        origins[key] = f"override {_shown(override)}"
    return _recipe(tables, source, origins)


def find(reference: str) -> Path:
    """The file that a reference means: a path, or the name of a shipped recipe."""
    if os.path.isfile(reference):  # of os, because that of a path raises at names that are too long
        return Path(reference)
    for folder in FOLDERS:
        path = folder / f"{reference.removesuffix('.toml')}.toml"
        if os.path.isfile(path):
            return path
    for folder in FOLDERS:
        for path in folder.rglob("*.toml"):
            if path.stem == reference and is_set(path):
                raise _no_recipe(path)
    raise RecipeError(f"no recipe {_shown(reference)}: no such file, and the shipped ones are {', '.join(shipped())}")


def _no_recipe(path: Path) -> RecipeError:
    return RecipeError(
        f"{path} is a set of runs and no recipe; timestepper sweep or reproduce {path.stem} trains all of it"
    )


def short_name(reference: str) -> str:
    """What a run of this recipe is called: the name of a shipped recipe, or the file's own."""
    path = find(reference).resolve()
    for folder in FOLDERS:
        if path.is_relative_to(folder):
            return str(path.relative_to(folder).with_suffix(""))
    return path.stem


def shipped() -> list[str]:
    """Names of the recipes that come with the project."""
    files = [(folder, path) for folder in FOLDERS for path in folder.rglob("*.toml") if not is_set(path)]
    return sorted(str(path.relative_to(folder).with_suffix("")) for folder, path in files)


def is_set(path: Path) -> bool:
    """Whether a file lists runs of recipes (``set = "fig4"``) and is no recipe itself."""
    return lists_runs(_read(path))


def lists_runs(text: str) -> bool:
    """Whether it is the text of such a file."""
    return "\nset = " in f"\n{text}"


def dump(recipe: Recipe) -> str:
    """The recipe as TOML, every field written out; absent ones are left out."""
    lines: list[str] = []
    for section, settings in sections(recipe):
        lines += [f"[{section}]", *(f"{f.name} = {_toml(v)}" for f, v in settings if v is not None), ""]
    return "\n".join(lines)


def as_dict(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The recipe as nested dictionaries."""
    return {section: {f.name: value for f, value in settings} for section, settings in sections(recipe)}


def sections(recipe: Recipe) -> Iterator[tuple[str, list[tuple[Field, Any]]]]:
    """Name, fields and values of every section."""
    for section in fields(recipe):
        settings = getattr(recipe, section.name)
        yield section.name, [(f, getattr(settings, f.name)) for f in fields(settings)]


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """What changes between two recipes, without the fields that are free to change: (key, old, new)."""
    return [
        (f"{section}.{f.name}", before, after)
        for (section, earlier), (_, later) in zip(sections(old), sections(new), strict=True)
        for (f, before), (_, after) in zip(earlier, later, strict=True)
        if before != after and not f.metadata["free"]
    ]


def describe_fields() -> Iterator[str]:
    """One line per field: key, default, limits, meaning."""
    for section, settings in sections(Recipe()):
        for f, default in settings:
            value = "absent" if default is None else _toml(default)
            yield f"{section}.{f.name} = {value}  {f.metadata['text']}{_limits(f)}"


# -- checks --------------------------------------------------------------------------------------------------------


def _recipe(tables: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> Recipe:
    known = {section.name: section.type for section in fields(Recipe)}
    parts = {}
    for name, table in tables.items():
        if name not in known:
            where = next((origin for key, origin in origins.items() if key.partition(".")[0] == name), source)
            raise RecipeError(f"{where}: unknown section [{name}]{_suggest(name, known)}")
        if not isinstance(table, dict):
            raise RecipeError(f"{source}: {name} must be a section, written [{name}]")
        parts[name] = _section(known[name], name, table, source, origins)
    recipe = Recipe(**parts)
    _check_together(recipe, f"{source} with {', '.join(origins.values())}" if origins else source)
    return recipe


def _section(kind: Any, section: str, table: Mapping[str, Any], source: str, origins: Mapping[str, str]) -> Any:
    known = {f.name: f for f in fields(kind)}
    types_of = typing.get_type_hints(kind)
    values = {}
    for name, value in table.items():
        key = f"{section}.{name}"
        where = origins.get(key, source)
        if name not in known:
            raise RecipeError(f"{where}: unknown key {key}{_suggest(name, known, section)}")
        values[name] = _value(value, types_of[name], known[name], key, where)
    return kind(**values)


def _value(value: Any, wanted: Any, f: Field, key: str, where: str) -> Any:
    options = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if value is None and type(None) in options:
        return None
    kind = options[0]
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise RecipeError(f"{where}: {key} must be a list of numbers, not {_shown(value)}")
        return tuple(_scalar(item, float, f, key, where) for item in value)
    return _scalar(value, kind, f, key, where)


def _scalar(value: Any, kind: type, f: Field, key: str, where: str) -> Any:
    if kind is float and type(value) is int and abs(value) <= _LARGEST:
        value = float(value)
    if type(value) is not kind:
        names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise RecipeError(f"{where}: {key} must be {names[kind]}, not {_shown(value)}{_limits(f)}")
    low, above, high = f.metadata["least"], f.metadata["above"], f.metadata["most"]
    impossible = (
        (f.metadata["choices"] and value not in f.metadata["choices"])
        or (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, int) and abs(value) > _LARGEST)
        or (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
    )
    if impossible:
        raise RecipeError(f"{where}: {key} cannot be {_shown(value)}{_limits(f)}")
    return value


def _shown(value: Any) -> str:
    """A value as it was written, or the beginning of a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "something endless"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _check_together(recipe: Recipe, source: str) -> None:
    """What single fields cannot show."""
    check_controller(recipe.controller, source)
    if recipe.schedule.warmup_epochs > recipe.run.epochs:
        raise RecipeError(
            f"{source}: schedule.warmup_epochs {recipe.schedule.warmup_epochs:g} is more than run.epochs "
            f"{recipe.run.epochs}"
        )
    folder = recipe.data.name in ("folder", "imagenet")
    if recipe.data.augment == "resized_crop" and not folder:
        raise RecipeError(f"{source}: data.augment resized_crop is for image folders, not {recipe.data.name}")
    if recipe.data.augment in ("shift", "crop_flip") and folder:
        raise RecipeError(
            f"{source}: data.augment {recipe.data.augment} is for images in memory, not {recipe.data.name} (allowed: "
            "one of none, resized_crop)"
        )
    if folder and recipe.data.resize is not None and recipe.data.resize < recipe.data.size:
        raise RecipeError(
            f"{source}: data.resize cannot be {recipe.data.resize} (allowed: at least data.size, {recipe.data.size})"
        )


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or "." not in key:
        names = [f"{section}.{f.name}" for section, settings in sections(Recipe()) for f, _ in settings]
        near = [name for name in names if name.endswith(f".{key}")]
        hint = f"; did you mean {near[0]}={text}?" if near else ", for example run.seed=1"
        raise RecipeError(f"override {_shown(override)} is not of the form section.key=value{hint}")
    key = key.strip()
    wanted = _type_of(key)
    if text.lower() == "none" and wanted is not str:
        return key, None
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return key, text
    is_text = wanted in (str, str | None)
    return key, text if is_text and not isinstance(value, str) else value  # a folder may be called 2024


def _type_of(key: str) -> Any:
    """The type of a field, None where there is no such field."""
    section, _, name = key.partition(".")
    kinds = {field.name: field.type for field in fields(Recipe)}
    return typing.get_type_hints(kinds[section]).get(name) if section in kinds else None


def _suggest(name: str, known: Iterable[str], section: str = "") -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    prefix = f"{section}." if section else ""
    guess = f"; did you mean {prefix}{near[0]}?" if near else ";"
    return f"{guess} allowed are {', '.join(names)}"


def _limits(f: Field) -> str:
    words = {"least": "at least", "above": "more than", "most": "at most"}
    parts = [f"{word} {f.metadata[name]}" for name, word in words.items() if f.metadata[name] is not None]
    if f.metadata["choices"]:
        parts.append("one of " + ", ".join(f.metadata["choices"]))
    return f" (allowed: {' and '.join(parts)})" if parts else ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and this
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}") from None
