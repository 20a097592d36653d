"""Recipes: TOML files and ``key=value`` overrides in, a checked :class:`Recipe` out, and back."""

import importlib
import json
import os
import sys
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, asdict, fields, replace
from pathlib import Path
from typing import Any

from timestepper import names, validate
from timestepper.errors import Leave, RecipeError, first_line
from timestepper.recipe.schema import ControllerSettings, Recipe
from timestepper.validate import Source, allowed, shown

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDERS = (_PACKAGE.parents[1] / "recipes", _PACKAGE / "recipes")


def load(reference: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a file, or a shipped one by a name such as ``smoke/digits``, with overrides applied.

    It is its user's own: the module of its controller is imported.
    """
    return load_file(find(reference), overrides, own=True)


def load_file(path: Path, overrides: Iterable[str] = (), own: bool = False) -> Recipe:
    """The recipe of a file. One that is not the user's ``own`` is only read: nothing is imported."""
    tables = validate.read(path, Source(path, RecipeError))
    if "set" in tables:
        raise _no_recipe(path)
    return _recipe(tables, path, overrides, own)


def loads(text: str, source: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of a TOML text, only read; ``source`` names it in errors."""
    return _recipe(validate.parse(text, ".toml", Source(source, RecipeError)), source, overrides)


def _recipe(tables: dict[str, Any], name: object, overrides: Iterable[str], own: bool = False) -> Recipe:
    origins: dict[str, str] = {}
    source = Source(name, RecipeError, origins=origins)
    for override in overrides:
        key, value = _parse_override(override)
        section, _, setting = key.partition(".")
        if not isinstance(tables.setdefault(section, {}), dict):
            raise source.fault(section, f"must be a table, not {shown(tables[section])}")
        tables[section][setting] = value
        origins[key] = f"override {shown(override)}"
    recipe = validate.build(Recipe, tables, source)
    whole = f"{name} with {', '.join(origins.values())}" if origins else str(name)
    _check_together(recipe, whole)
    if recipe.controller.kind == "none":  # else the plain network would be as many runs as there are controllers
        recipe = replace(recipe, controller=ControllerSettings())
    if own:
        import_controller(recipe, whole)
    return recipe


def import_controller(recipe: Recipe, source: object) -> None:
    """Import the module that registers the recipe's controller, if it names one, and check what it has registered."""
    if recipe.controller.module is not None:
        _import(recipe.controller.module, f"{source}: controller.module")
        _check_controller(recipe.controller, str(source))


def import_kind(controller: str) -> None:
    """Import what may register a kind that a command line names: the modules that the user allows."""
    if names.kind_of(controller) not in ("none", *names.CONTROLLERS):
        for module in names.allowed():
            _import(module, names.MODULES)


def _import(module: str, asked_by: str) -> None:
    try:
        importlib.import_module(module)
    except (KeyboardInterrupt, Leave):
        raise
    except BaseException as error:  # of a foreign module, which can raise anything
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        advice = "; is its folder on PYTHONPATH?" if missing else ""
        raise RecipeError(
            f"{asked_by} {module!r} cannot be imported: {type(error).__name__}: {first_line(error)}{advice}"
        ) from error


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
    raise RecipeError(f"no recipe {shown(reference)}: no such file, and the shipped ones are {', '.join(shipped())}")


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
    return "set" in validate.read(path, Source(path, RecipeError))


def dump(recipe: Recipe) -> str:
    """The recipe as TOML, every field written out; absent ones are left out."""
    lines: list[str] = []
    for section, settings in sections(recipe):
        lines += [f"[{section}]", *(f"{f.name} = {_toml(v)}" for f, v in settings if v is not None), ""]
    return "\n".join(lines)


def as_dict(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The recipe as nested dictionaries."""
    return asdict(recipe)


def sections(recipe: Recipe) -> Iterator[tuple[str, list[tuple[Field, Any]]]]:
    """Name, fields and values of every section."""
    for section in fields(recipe):
        settings = getattr(recipe, section.name)
        yield section.name, [(f, getattr(settings, f.name)) for f in fields(settings)]


def differences(old: Recipe, new: Recipe) -> list[tuple[str, Any, Any]]:
    """What changes between two recipes, without the fields that are free to change: (key, old, new).

    Where a plain network is new, what the old one's controller was like goes with it.
    """
    plain = new.controller.kind == "none"
    return [
        (f"{section}.{f.name}", before, after)
        for (section, earlier), (_, later) in zip(sections(old), sections(new), strict=True)
        for (f, before), (_, after) in zip(earlier, later, strict=True)
        if before != after and not f.metadata["free"] and not (plain and section == "controller" and f.name != "kind")
    ]


def identity(recipe: Mapping[str, Mapping[str, Any]]) -> str:
    """All that decides what a recipe learns and is not at its default, as JSON.

    A version with one more setting so finds the records, and the half-finished runs, of those before it. A run of an
    older default, which has the same folder, is told by the recipe in it. What older ones say of the controller that a
    plain network does not have decides nothing.
    """
    settled: dict[str, dict[str, Any]] = {}
    for section, settings in sections(Recipe()):
        given = recipe.get(section, {})
        if section == "controller" and given.get("kind") == "none":
            given = {}
        settled[section] = {
            f.name: given[f.name]
            for f, default in settings
            if not f.metadata["free"] and json.dumps(given.get(f.name, default)) != json.dumps(default)
        }
    return json.dumps(settled, sort_keys=True)


def describe_fields() -> Iterator[str]:
    """One line per field: key, default, limits, meaning."""
    for section, settings in sections(Recipe()):
        for f, default in settings:
            value = "absent" if default is None else _toml(default)
            yield f"{section}.{f.name} = {value}  {f.metadata['text']}{allowed(f.metadata)}"


# -- checks --------------------------------------------------------------------------------------------------------


def _check_together(recipe: Recipe, source: str) -> None:
    """What single fields cannot show."""
    _check_controller(recipe.controller, source)
    if recipe.schedule.warmup_epochs > recipe.run.epochs:
        raise RecipeError(
            f"{source}: schedule.warmup_epochs {recipe.schedule.warmup_epochs:g} is more than run.epochs "
            f"{recipe.run.epochs}"
        )
    batch, parts = recipe.data.batch_size, recipe.data.accumulate
    if batch % parts:
        near = next((n for n in range(parts, parts + 1000) if batch % n == 0), batch)
        raise RecipeError(
            f"{source}: data.accumulate cannot be {parts} (allowed: what divides data.batch_size, {batch}); "
            f"did you mean {near}?"
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


def _check_controller(controller: ControllerSettings, source: str) -> None:
    """Refuse what is not known; what a module registers that is not imported yet nobody knows."""
    kind, written = names.kind_of(controller.kind), "(" in controller.kind
    known = kind in ("none", *names.CONTROLLERS)
    to_come = controller.module is not None and controller.module not in sys.modules
    if not (known or to_come) or ":" in controller.kind or "," in controller.kind.partition("(")[0]:
        more = "" if controller.module else "; one of your own needs controller.module, which registers it"
        raise RecipeError(
            f"{source}: controller.kind cannot be {controller.kind!r} (allowed: one of none, {names.known()}{more})"
        )
    if not known:
        return
    told = names.CONTROLLERS.get(kind, names.Kind())
    options = told.options
    if len(options) == 1 and not (written or told.optional) and controller.value is None:
        example = told.example.partition("(")[2].rstrip(")")
        form = f"its {options[0]}, a number" if example == options[0] else f"for example {example}"
        raise RecipeError(f"{source}: controller.kind {kind} needs controller.value, {form}")
    if controller.value is not None and (len(options) != 1 or written):
        raise RecipeError(f"{source}: controller.value is not for controller.kind {controller.kind}")
    if kind == "fixed" and controller.value == 0:
        raise RecipeError(f"{source}: controller.value cannot be 0.0 (allowed: more than 0)")
    if controller.start not in names.STARTS and not _positive(controller.start):
        raise RecipeError(
            f"{source}: controller.start must be paper, identity or a positive number, not {controller.start!r}"
        )


def _positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def _parse_override(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or "." not in key:
        keys = (f"{section}.{f.name}" for section, settings in sections(Recipe()) for f, _ in settings)
        near = [name for name in keys if name.endswith(f".{key}")]
        hint = f"; did you mean {near[0]}={text}?" if near else ", for example run.seed=1"
        raise RecipeError(f"override {shown(override)} is not of the form section.key=value{hint}")
    key, text = key.strip(), text.strip()
    wanted = _type_of(key)
    if text.lower() == "none" and wanted is not str:
        return key, None
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return key, text
    value = table.pop("value")
    if table:
        raise RecipeError(f"override {shown(override)} has more than one line; give each setting as one of its own")
    is_text = wanted in (str, str | None)
    return key, text if is_text and not isinstance(value, str) else value  # a folder may be called 2024


def _type_of(key: str) -> Any:
    """The type of a field, None where there is no such field."""
    section, _, name = key.partition(".")
    kinds = {field.name: field.type for field in fields(Recipe)}
    return typing.get_type_hints(kinds[section]).get(name) if section in kinds else None


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML escapes what JSON does, and this
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return repr(value)
