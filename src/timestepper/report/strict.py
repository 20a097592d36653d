"""Tables of a file into dataclasses, strictly: an unknown or missing key or a wrong type is an error that names it."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from timestepper.errors import RecordError

T = TypeVar("T")


def build(kind: type[T], table: Any, where: str) -> T:
    """An instance of a dataclass from a table; ``where`` names file and place in errors."""
    if not isinstance(table, Mapping):
        raise RecordError(f"{where}: must be a table, not {table!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for key in table:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise RecordError(f"{where}: unknown key {key}; {guess}allowed are {', '.join(fields)}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in table:
            raise RecordError(f"{where}: key {name} is missing")
    return kind(**{key: convert(value, hints[key], f"{where}: {key}") for key, value in table.items()})


def convert(value: Any, wanted: Any, where: str) -> Any:
    """``value`` as the wanted type: a scalar, a dataclass, ``tuple[X, ...]``, ``dict[str, X]`` or ``X | None``."""
    if isinstance(wanted, types.UnionType):
        options = [option for option in typing.get_args(wanted) if option is not type(None)]
        return None if value is None else convert(value, options[0], where)
    origin = typing.get_origin(wanted)
    if origin is tuple:
        if not isinstance(value, list):
            raise RecordError(f"{where} must be a list, not {value!r}")
        inner = typing.get_args(wanted)[0]
        return tuple(convert(item, inner, f"{where}[{number}]") for number, item in enumerate(value, 1))
    if origin is dict:
        if not isinstance(value, dict):
            raise RecordError(f"{where} must be a table, not {value!r}")
        inner = typing.get_args(wanted)[1]
        return {key: convert(item, inner, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(wanted):
        return build(typing.cast(type, wanted), value, where)
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise RecordError(f"{where} must be a number that a float can hold") from None
    if wanted is not Any and type(value) is not wanted:
        names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table"}
        raise RecordError(f"{where} must be {names.get(wanted, wanted)}, not {value!r}")
    return value
