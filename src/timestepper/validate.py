"""All that is read from files is checked here, in one way, without torch.

A dataclass describes what a table may hold: annotations are the types, defaults say what may be left out,
:func:`limited` adds ranges and choices. A mistake is one line that names the file, the key and what is allowed.
"""

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import os
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from timestepper.errors import TimestepperError, first_line

T = TypeVar("T")

LARGEST_FILE = 2**28  # bytes; the record of the longest run that a recipe allows is smaller
LARGEST = 2**63 - 1  # of whole numbers
DEEPEST = 50  # tables and lists in each other
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a table", list: "a list"}


@dataclass(frozen=True)
class Source:
    """What is being read: its name in messages, the type of its errors, and what to do about one."""

    name: object
    error: type[TimestepperError]
    advice: str = ""
    origins: Mapping[str, str] = field(default_factory=dict)  # keys that come from elsewhere, and from where

    def fault(self, key: str, message: str) -> TimestepperError:
        """The error about a key, or about the whole where the key is empty."""
        near = [origin for at, origin in self.origins.items() if key and (_within(at, key) or _within(key, at))]
        advice = f"; {self.advice}" if self.advice else ""
        return self.error(f"{near[0] if near else self.name}: {f'{key} {message}'.strip()}{advice}")


def _within(key: str, outer: str) -> bool:
    return key == outer or key.startswith((f"{outer}.", f"{outer}["))


def limited(default: Any = MISSING, **limits: Any) -> Any:
    """A field of a dataclass whose value, or whose every value where it holds several, keeps to limits.

    These are ``choices``, ``least``, ``above``, ``most``, and ``wrong``, a function that says what is wrong with a
    value; nothing where nothing is.
    """
    return field(default=default, metadata=limits)


# -- reading -----------------------------------------------------------------------------------------------------------


def read(path: Path, source: Source) -> Any:
    """What is in a JSON file, or else a TOML file; its suffix says which."""
    try:
        if not os.path.isfile(path):
            raise OSError("a folder, a device or a pipe" if os.path.exists(path) else "no such file")
        if os.path.getsize(path) > LARGEST_FILE:
            raise OSError(f"more than {LARGEST_FILE >> 20} MiB")
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # the latter for bytes and names that are no text
        reason = getattr(error, "strerror", None) or first_line(error)
        raise source.fault("", f"cannot be read: {reason}") from None
    return parse(text, Path(path).suffix, source)


def parse(text: str, form: str, source: Source) -> Any:
    """What a text says; ``form`` is ``.json``, anything else is TOML."""
    name, loads = ("JSON", json.loads) if form.lower() == ".json" else ("TOML", tomllib.loads)
    try:
        content = loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, brackets in brackets
        raise source.fault("", f"not valid {name}: {first_line(error)}") from None
    layer = [content] if _holds(content) else []
    for _ in range(DEEPEST):
        layer = [item for one in layer for item in (one.values() if isinstance(one, dict) else one) if _holds(item)]
    if layer:
        raise source.fault("", f"has more than {DEEPEST} tables and lists in each other")
    return content


def _holds(item: Any) -> bool:
    return isinstance(item, dict | list)


# -- checking ----------------------------------------------------------------------------------------------------------


def build(kind: type[T], table: Any, source: Source, key: str = "", *, extra: bool = False) -> T:
    """An instance of a dataclass from a table; ``extra`` passes over keys that it does not know."""
    if not isinstance(table, Mapping):
        raise source.fault(key, f"must be a table, not {shown(table)}")
    known, hints = {f.name: f for f in dataclasses.fields(kind)}, _hints(kind)  # type: ignore[arg-type]
    prefix = f"{key}." if key else ""
    values = {}
    for name, value in table.items():
        if name in known:
            values[name] = convert(value, hints[name], source, f"{prefix}{name}", known[name].metadata, extra=extra)
        elif not extra:
            where = f"{prefix}{name if isinstance(name, str) else shown(name)}"[:100]
            raise source.fault(where, "is not known" + suggest(name, known, prefix))
    for name, one in known.items():
        if name not in table and one.default is MISSING and one.default_factory is MISSING:
            raise source.fault(f"{prefix}{name}", "is missing")
    return kind(**values)


def convert(
    value: Any, wanted: Any, source: Source, key: str, limits: Mapping[str, Any] = {}, *, extra: bool = False
) -> Any:
    """``value`` as the wanted type: a scalar, a dataclass, any class, lists, tuples and tables of these, ``X | Y``."""
    if isinstance(wanted, types.UnionType):
        options = [option for option in typing.get_args(wanted) if option is not type(None)]
        if value is None and type(None) in typing.get_args(wanted):
            return None
        for option in options[:-1]:
            with contextlib.suppress(TimestepperError):
                return convert(value, option, source, key, limits, extra=extra)
        return convert(value, options[-1], source, key, limits, extra=extra)
    origin = typing.get_origin(wanted) or wanted
    inner = typing.get_args(wanted)
    if origin in (tuple, list, dict) and not isinstance(value, dict if origin is dict else list):
        raise source.fault(key, f"must be {'a table' if origin is dict else 'a list'}, not {shown(value)}")
    if origin is tuple and inner and inner[-1] is not Ellipsis and len(value) != len(inner):
        raise source.fault(key, f"must have {len(inner)} values, not {shown(value)}")
    if origin in (tuple, list) and inner:
        return origin(
            convert(item, inner[0], source, f"{key}[{number}]", limits, extra=extra)
            for number, item in enumerate(value, 1)
        )
    if origin is dict and inner:
        if any(type(name) is not str for name in value):
            raise source.fault(key, "has a key that is no text")
        return {
            name: convert(item, inner[1], source, f"{key}.{name}", limits, extra=extra) for name, item in value.items()
        }
    if dataclasses.is_dataclass(wanted):
        return build(typing.cast(type, wanted), value, source, key, extra=extra)
    return value if wanted is Any or origin in (tuple, list, dict) else _scalar(value, wanted, source, key, limits)


def _scalar(value: Any, kind: type, source: Source, key: str, limits: Mapping[str, Any]) -> Any:
    if kind is float and type(value) is int and abs(value) <= LARGEST:
        value = float(value)
    if type(value) is not kind and (kind in _WORDS or not isinstance(value, kind)):
        word = _WORDS.get(kind, f"a {kind.__name__}")
        raise source.fault(key, f"must be {word}, not {shown(value)}{allowed(limits)}")
    low, above, high = limits.get("least"), limits.get("above"), limits.get("most")
    impossible = (
        (limits.get("choices") and value not in limits["choices"])
        or (isinstance(value, float) and not math.isfinite(value))
        or (isinstance(value, int) and abs(value) > LARGEST)
        or (low is not None and value < low)
        or (above is not None and value <= above)
        or (high is not None and value > high)
    )
    if impossible:
        raise source.fault(key, f"cannot be {shown(value)}{allowed(limits)}")
    if limits.get("wrong") and (reason := limits["wrong"](value)):
        raise source.fault(key, f"cannot be {shown(value)}: {reason}")
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


# -- words -------------------------------------------------------------------------------------------------------------


def shown(value: Any) -> str:
    """A value as it was written, or the beginning of a long one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "something endless"
    return text if len(text) <= 100 else f"{text[:100]}…"


def suggest(name: object, known: Iterable[str], prefix: str = "") -> str:
    """The known name that was probably meant, and all that there are."""
    names = list(known)
    near = difflib.get_close_matches(str(name)[:100], names, n=1)
    guess = f"; did you mean {prefix}{near[0]}?" if near else ";"
    return f"{guess} allowed are {', '.join(names)}"


def allowed(limits: Mapping[str, Any]) -> str:
    """The limits of a field in words; empty where there are none."""
    words = {"least": "at least", "above": "more than", "most": "at most"}
    parts = [f"{word} {limits[name]}" for name, word in words.items() if limits.get(name) is not None]
    if limits.get("choices"):
        parts.append("one of " + ", ".join(limits["choices"]))
    return f" (allowed: {' and '.join(parts)})" if parts else ""
