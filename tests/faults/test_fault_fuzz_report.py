"""Whatever stands in a record or in a claim: it is refused by name, or makes a page: T36."""

import contextlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import runs
from counts import count
from fuzzing import places, put, toml, values
from hypothesis import strategies as st
from stopping import drive

from timestepper.files import with_checksum
from timestepper.records import load_records, read_records
from timestepper.report.claims import FOLDER as CLAIMS
from timestepper.report.claims import load_claims
from timestepper.report.page import write_page


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    assert drive(runs.train(run, recipe=[*runs.SHORT, "run.epochs=1"])) is None
    return run


@count("T36")
def test_t36_records(fuzz, times, tmp_path, finished):
    """Changed by somebody who knows how to make the checksum fit; what is accepted must make a page."""
    sound = json.loads((finished / "record.json").read_text())
    changes = st.lists(st.tuples(st.sampled_from(places(sound)), values), min_size=1, max_size=2)
    pages = 0

    def check(changes: list) -> None:
        nonlocal pages
        made: Any = sound
        for path, value in changes:
            try:
                made = put(made, path, value)
            except (KeyError, IndexError, TypeError):
                continue
        made = with_checksum(made) if isinstance(made, dict) else made
        (tmp_path / "record.json").write_text(json.dumps(made))
        records, problems = load_records(tmp_path)
        assert len(records) + len(problems) == 1
        if records and pages < times / 10:
            pages += 1
            write_page(records, {}, tmp_path / "page.html", tmp_path / "page.md", "Fuzz", problems=problems)

    fuzz(times, changes, check)
    assert pages


@count("T36")
def test_t36_claims(fuzz, times, tmp_path, finished):
    """Every claim file with other values in it; what is accepted must make a page."""
    sound = {path.name: tomllib.loads(path.read_text()) for path in CLAIMS.glob("*.toml")}
    spots = [(name, path) for name, content in sorted(sound.items()) for path in places(content)]
    changes = st.lists(st.tuples(st.sampled_from(spots), values), min_size=1, max_size=2)
    records, _ = read_records([finished / "record.json"])
    pages = 0

    def check(changes: list) -> None:
        nonlocal pages
        name, made = changes[0][0][0], sound[changes[0][0][0]]
        for (other, path), value in changes:
            with contextlib.suppress(KeyError, IndexError, TypeError):
                made = put(made, path, value) if other == name else made
        path = tmp_path / name
        path.write_text(
            "\n".join(f"{json.dumps(key)} = {toml(value)}" for key, value in made.items())
            if isinstance(made, dict)
            else toml(made)
        )
        claims, problems = load_claims(tmp_path)
        path.unlink()
        assert len(claims) + len(problems) == 1
        if claims and pages < times / 20:
            pages += 1
            write_page(records, claims, tmp_path / "page.html", tmp_path / "page.md", "Fuzz", problems=problems)

    check([(("fig5.toml", ("title",)), "another")])
    assert pages
    fuzz(times, changes, check)
