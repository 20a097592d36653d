"""Whatever stands in a file, an override or the environment: it works, or is refused and changes nothing: T36."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from counts import count
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stopping import drive

from timestepper import saving, torchrun
from timestepper.adapters import create_model
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.errors import TimestepperError
from timestepper.files import with_checksum
from timestepper.recipe.load import dump, load, loads, sections
from timestepper.recipe.schema import Recipe
from timestepper.records import load_records
from timestepper.report.page import write_page
from timestepper.runs import finish
from timestepper.runs.load import restore
from timestepper.runs.run import Run
from timestepper.runs.train import Process

RECIPE = [*runs.SHORT, "run.epochs=1"]
ROOT = Path(__file__).parents[2]
KEYS = [f"{section}.{f.name}" for section, fields in sections(Recipe()) for f, _ in fields]

words = st.text(max_size=12) | st.sampled_from(["", "nan", "inf", "none", "true", "cpu", "lstm", "\x1b[31m", "a" * 300])
numbers = st.integers() | st.floats() | st.sampled_from([-1, 0, 2**63, 10**400, -(10**400), 1e308, -0.0])
scalars = st.none() | st.booleans() | numbers | words
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3))


def fuzz(times: int, strategy: st.SearchStrategy, check: Callable[[Any], object]) -> None:
    """Check so many examples: always the same in the default run, others each time in a soak."""

    @settings(
        max_examples=times,
        deadline=None,
        database=None,
        derandomize=times < 1000,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def run(example: Any) -> None:
        check(example)

    run()


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


@count("T36")
def test_t36_recipes(times):
    """What is accepted says the same after it was written and read again."""
    lines = st.tuples(st.sampled_from(KEYS) | words.map("run.{}".format), values)
    tables = st.lists(lines, max_size=4).map(
        lambda found: "\n".join(f"{key.replace(chr(10), '')} = {toml(value)}" for key, value in found)
    )

    def check(text: str) -> None:
        if not refused(lambda: loads(text, "x.toml")):
            recipe = loads(text, "x.toml")
            assert loads(dump(recipe), "again") == recipe

    fuzz(times, tables | st.text(), check)


@count("T36")
def test_t36_overrides(times):
    written = st.tuples(st.sampled_from(KEYS) | words, st.sampled_from(["=", " = ", ""]), values.map(toml) | words)
    fuzz(
        times,
        st.lists(written.map("".join), max_size=3),
        lambda changes: refused(lambda: load("smoke/digits", changes)),
    )


@count("T36")
def test_t36_environments(times, monkeypatch):
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    texts = (words | numbers.map(str)).filter(lambda text: "\0" not in text)
    questions = (torchrun.rank, torchrun.world_size, torchrun.local_rank, torchrun.local_world_size)

    def check(changes: dict[str, str]) -> None:
        with monkeypatch.context() as patch:
            for name in names:
                patch.delenv(name, raising=False)
            for name, text in changes.items():
                os.environ[name] = text
            for question in (*questions, torchrun.restarts, torchrun.port):
                refused(question)
            for name in changes:
                del os.environ[name]

    fuzz(times, st.dictionaries(st.sampled_from(names), texts), check)


# -- files that a run has written ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("fuzz") / "run"
    assert drive(runs.train(run, recipe=RECIPE)) is None
    return run


def tensors() -> st.SearchStrategy:
    shapes = st.lists(st.integers(0, 3), max_size=4)
    kinds = st.sampled_from([torch.float32, torch.int8, torch.bool, torch.complex64])
    return st.builds(lambda shape, kind: torch.zeros(shape, dtype=kind), shapes, kinds)


@count("T36")
def test_t36_fields_of_checkpoints(times, tmp_path, finished):
    """A sound archive, as evaluate and a resume read it."""
    newest = runs.checkpoints(finished)[-1]
    sound = runs.newest(finished)
    fields = st.sampled_from([*sound, "observed", "else"])
    changes = st.dictionaries(fields, values | tensors() | st.lists(tensors(), max_size=2), max_size=2)
    inside = st.dictionaries(st.sampled_from(sorted(sound["model"])), tensors() | values, max_size=1)
    recipe = load(RECIPE[0], RECIPE[1:])

    def check(example: tuple) -> None:
        changes, inside, lost = example
        state = {name: value for name, value in {**sound, **changes}.items() if name not in lost}
        if isinstance(state.get("model"), dict):
            state["model"] = state["model"] | inside
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished, run)
        for path in runs.checkpoints(run):
            path.unlink()
        torch.save(state, run / "checkpoints" / newest.name)
        before = content(run)
        evaluated = refused(lambda: restore(run, blind=True))
        assert content(run) == before
        folder = RunDirectory(run)
        try:
            resumed = refused(lambda: begin(Process(Run(recipe, "run", run), folder, Signals())))
        finally:
            folder.close()
        if resumed or evaluated:
            after = content(run)
            assert {name: after.get(name) for name in before if name != "run.lock"} == {
                name: value for name, value in before.items() if name != "run.lock"
            }

    fuzz(times, st.tuples(changes, inside, st.sets(fields, max_size=1)), check)


def begin(process: Process) -> None:
    with contextlib.closing(process.steps()) as steps:
        next(steps)


@count("T36")
def test_t36_logs_and_status_of_a_run(times, tmp_path, finished):
    """Every small text file of a run, with pieces cut out, put in and changed."""
    recipe = load(RECIPE[0], RECIPE[1:])
    files = [path.name for path in finished.iterdir() if path.is_file() and path.suffix in (".json", ".jsonl", ".toml")]
    edits = st.tuples(st.sampled_from(files), st.integers(0, 3000), st.integers(0, 40), st.binary(max_size=8))

    def check(example: tuple) -> None:
        name, start, length, put = example
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(finished, run)
        text = (run / name).read_bytes()
        start %= len(text) + 1
        (run / name).write_bytes(text[:start] + put + text[start + length :])
        refused(lambda: restore(run, blind=True))
        refused(lambda: finish.epochs_of(run))
        folder = RunDirectory(run)
        try:
            refused(lambda: begin(Process(Run(recipe, "run", run), folder, Signals())))
        finally:
            folder.close()

    fuzz(times, edits, check)


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


@count("T36")
def test_t36_records(times, tmp_path, finished):
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
def test_t36_headers_of_safetensors(times, tmp_path, finished):
    """With a checksum that fits, so that the header itself is what is looked at."""
    sound = (finished / "weights.safetensors").read_bytes()
    edits = st.tuples(st.integers(0, 3000), st.integers(0, 20), st.binary(max_size=8))
    model = create_model("cifar/resnet8", num_classes=10, in_chans=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = tmp_path / "weights.safetensors"

    def check(example: tuple) -> None:
        start, length, new = example
        data = sound[:start] + new + sound[start + length :]
        path.write_bytes(data)
        path.with_name(f"{path.name}.sha256").write_text(f"{hashlib.sha256(data).hexdigest()}  {path.name}\n")
        if refused(lambda: saving.load_folded(model, path)):
            assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        else:
            model.load_state_dict(before)

    fuzz(times, edits, check)
