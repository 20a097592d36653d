"""Whatever stands in a file, an override or the environment: it works, or is refused and changes nothing: T36."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

import pytest
import runs
import torch
from counts import count
from fuzzing import content, numbers, refused, toml, values, words
from hypothesis import strategies as st
from stopping import drive

from timestepper import saving, torchrun
from timestepper.adapters import create_model
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.recipe.load import dump, load, loads, sections
from timestepper.recipe.schema import Recipe
from timestepper.runs import finish
from timestepper.runs.load import restore
from timestepper.runs.run import Run
from timestepper.runs.train import Process

RECIPE = [*runs.SHORT, "run.epochs=1"]
ROOT = Path(__file__).parents[2]
KEYS = [f"{section}.{f.name}" for section, fields in sections(Recipe()) for f, _ in fields]


@count("T36")
def test_t36_recipes(fuzz, times):
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
def test_t36_overrides(fuzz, times):
    written = st.tuples(st.sampled_from(KEYS) | words, st.sampled_from(["=", " = ", ""]), values.map(toml) | words)
    fuzz(
        times,
        st.lists(written.map("".join), max_size=3),
        lambda changes: refused(lambda: load("smoke/digits", changes)),
    )


@count("T36")
def test_t36_environments(fuzz, times, monkeypatch):
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
def test_t36_fields_of_checkpoints(fuzz, times, tmp_path, finished):
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

    fuzz(times // 2, st.tuples(changes, inside, st.sets(fields, max_size=1)), check)  # each takes a fifth of a second


def begin(process: Process) -> None:
    with contextlib.closing(process.steps()) as steps:
        next(steps)


@count("T36")
def test_t36_logs_and_status_of_a_run(fuzz, times, tmp_path, finished):
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

    fuzz(times // 2, edits, check)


@count("T36")
def test_t36_headers_of_safetensors(fuzz, times, tmp_path, finished):
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
