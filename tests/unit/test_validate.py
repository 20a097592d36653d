from dataclasses import dataclass, field
from typing import Any

import pytest

from timestepper import validate
from timestepper.errors import RecordError
from timestepper.validate import Source, build, limited, parse, read


@dataclass(frozen=True)
class Part:
    label: str
    sizes: tuple[float, ...] = limited((), least=0, most=9)
    notes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    name: str = limited(choices=("one", "two"))
    seed: int = limited(0, least=0)
    rate: float = limited(0.5, above=0)
    flag: bool = False
    start: str | float = "paper"
    part: tuple[Part, ...] = ()
    free: Any = None
    maybe: int | None = None


SOURCE = Source("x.toml", RecordError, "mend it")


def made(**table):
    return build(Whole, {"name": "one", **table}, SOURCE)


def test_a_table_becomes_a_dataclass():
    found = made(rate=1, start=2, part=[{"label": "a", "sizes": [1, 2.5], "notes": {"k": 3}}], free=[{}], maybe=None)
    assert found == Whole("one", rate=1.0, start=2.0, part=(Part("a", (1.0, 2.5), {"k": 3}),), free=[{}])
    assert type(found.rate) is type(found.start) is float
    assert made(start="identity").start == "identity"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "three"}, "name cannot be 'three' (allowed: one of one, two)"),
        ({"seed": True}, "seed must be a whole number, not True (allowed: at least 0)"),
        ({"seed": -1}, "seed cannot be -1 (allowed: at least 0)"),
        ({"seed": 2**63}, "seed cannot be 9223372036854775808 (allowed: at least 0)"),
        ({"seed": None}, "seed must be a whole number, not None (allowed: at least 0)"),
        ({"rate": 0}, "rate cannot be 0.0 (allowed: more than 0)"),
        ({"rate": float("nan")}, "rate cannot be nan (allowed: more than 0)"),
        ({"rate": 10**400}, "rate must be a number, not 1000"),
        ({"flag": 1}, "flag must be true or false, not 1"),
        ({"start": [1]}, "start must be a number, not [1]"),
        ({"sede": 1}, "sede is not known; did you mean seed? allowed are name, seed, rate"),
        ({"part": {}}, "part must be a list, not {}"),
        ({"part": [3]}, "part[1] must be a table, not 3"),
        ({"part": [{"label": "a"}, {}]}, "part[2].label is missing"),
        ({"part": [{"lable": "a"}]}, "part[1].lable is not known; did you mean part[1].label?"),
        ({"part": [{"label": "a", "sizes": [1, 10]}]}, "part[1].sizes[2] cannot be 10.0 (allowed: at least 0 and at"),
        ({"part": [{"label": "a", "notes": {"k": "v"}}]}, "part[1].notes.k must be a whole number, not 'v'"),
        ({"part": [{"label": "a", "notes": {1: 2}}]}, "part[1].notes has a key that is no text"),
        ({"maybe": "x" * 300}, f"maybe must be a whole number, not '{'x' * 99}…"),
    ],
)
def test_a_mistake_is_one_line_with_file_key_limits_and_advice(table, message):
    with pytest.raises(RecordError) as error:
        made(**table)
    assert str(error.value).startswith(f"x.toml: {message}")
    assert str(error.value).endswith("; mend it")


def test_what_is_missing_and_what_is_too_much():
    with pytest.raises(RecordError, match=r"x.toml: name is missing; mend it"):
        build(Whole, {}, SOURCE)
    with pytest.raises(RecordError, match=r"x.toml: must be a table, not \[\]; mend it"):
        build(Whole, [], SOURCE)
    table = {"name": "one", "new": 1, "part": [{"label": "a", "newer": 2}]}
    assert build(Whole, table, SOURCE, extra=True) == Whole("one", part=(Part("a"),))


def test_keys_that_come_from_elsewhere_name_it():
    source = Source("x.toml", RecordError, origins={"part.size": "override part.size=1"})
    assert str(source.fault("part.size", "is odd")) == "override part.size=1: part.size is odd"
    assert str(source.fault("part", "is odd")) == "override part.size=1: part is odd"
    assert str(source.fault("part.size[1]", "is odd")) == "override part.size=1: part.size[1] is odd"
    assert str(source.fault("par", "is odd")) == "x.toml: par is odd"


@pytest.mark.parametrize(
    ("text", "form", "message"),
    [
        ("[a", ".toml", "not valid TOML"),
        ("[a", "", "not valid TOML"),
        ("[a", ".txt", "not valid TOML"),
        ("{", ".json", "not valid JSON"),
        ("{", ".JSON", "not valid JSON"),
        ("a = " + "9" * 5000, ".toml", "not valid TOML"),
        ("[" * 100_000, ".json", "not valid JSON"),
        ("[" * 51 + "]" * 51, ".json", "has more than 50 tables and lists in each other"),
        (".".join("a" * 5000) + " = 1", ".toml", "has more than 50 tables and lists in each other"),
    ],
)
def test_texts_without_end_are_refused(text, form, message):
    with pytest.raises(RecordError, match=f"x.toml: {message}.*; mend it"):
        parse(text, form, SOURCE)


def test_as_deep_as_allowed_is_read():
    assert parse("[" * 50 + "]" * 50, ".json", SOURCE)
    assert parse("3", ".json", SOURCE) == 3
    assert parse("a = 0x" + "f" * 400, ".toml", SOURCE)["a"] > 0


def test_files_that_are_none_or_too_large(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    with pytest.raises(RecordError, match="cannot be read: no such file; mend it"):
        read(path, SOURCE)
    with pytest.raises(RecordError, match="cannot be read: a folder, a device or a pipe"):
        read(tmp_path, SOURCE)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(RecordError, match="cannot be read: 'utf-8' codec"):
        read(path, SOURCE)
    path.write_text("[1]")
    assert read(path, SOURCE) == [1]
    monkeypatch.setattr(validate, "LARGEST_FILE", 2)
    with pytest.raises(RecordError, match="cannot be read: more than 0 MiB"):
        read(path, SOURCE)
