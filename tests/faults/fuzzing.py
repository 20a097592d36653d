"""What the fuzzing tests share: hostile values, and where to put them."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from timestepper.errors import TimestepperError

words = st.text(max_size=12) | st.sampled_from(["", "nan", "inf", "none", "true", "cpu", "lstm", "\x1b[31m", "a" * 300])
numbers = st.integers() | st.floats() | st.sampled_from([-1, 0, 2**63, 10**400, -(10**400), 1e308, -0.0])
scalars = st.none() | st.booleans() | numbers | words
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def refused(action: Callable[[], object]) -> bool:
    """Whether it was refused; any other end than that and success is a fault."""
    try:
        action()
    except TimestepperError as error:
        if error.exit_code != 2 or not str(error).strip():
            raise
        return True
    return False


def content(folder: Path) -> dict[str, str]:
    """All that lies in a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def toml(value: Any) -> str:
    """A value as TOML would have it, or nearly."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return json.dumps(value) if isinstance(value, str) else str(value)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Every place in nested tables and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def put(value: Any, path: tuple, new: Any) -> Any:
    """A copy with one place changed."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy
