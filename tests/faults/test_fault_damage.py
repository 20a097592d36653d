"""Files that are cut short, flipped, zeroed or hostile: T7, T8, T9, T10, T11."""

import random
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
import torch
from counts import count
from hostile_files import Payload
from stopping import drive

from timestepper import tensors
from timestepper.engine.checkpoint import read
from timestepper.errors import CheckpointError

SHORT = [*runs.SHORT, "run.checkpoint_steps=3"]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with checkpoints of steps 6 and 8, and what it comes to when nobody disturbs it."""
    folder = tmp_path_factory.mktemp("stopped")
    assert drive(runs.train(folder / "run", recipe=SHORT), signal_after=9) == 8
    assert [path.name for path in runs.checkpoints(folder / "run")] == ["step-00000006.pt", "step-00000008.pt"]
    assert drive(runs.train(runs.copy(folder / "run", folder / "reference"), recipe=SHORT)) is None
    return folder / "run", folder / "reference"


def readers(run: Path, folder: Path) -> list[list[str]]:
    """Every command that reads a checkpoint."""
    return [runs.train(run, recipe=SHORT), ["evaluate", str(run)], ["fold", str(run), "-o", str(folder / "x")]]


@count("T7")
def test_t7_truncated_checkpoint_is_named_and_the_one_before_used(times, tmp_path, stopped_run, chance, cli, figure):
    source, reference = stopped_run
    size = runs.checkpoints(source)[-1].stat().st_size
    for number in range(times):
        run = runs.copy(source, tmp_path / f"run-{number}")
        bad = runs.checkpoints(run)[-1]
        with bad.open("r+b") as file:
            file.truncate(chance.randrange(size))
        outcome = cli(*runs.train(run, recipe=SHORT))
        assert outcome.code == 0, outcome.err
        assert f"warning: {bad} is damaged" in outcome.err
        assert "going on at step 6" in outcome.out
        assert runs.differing(run, reference) == []
        shutil.rmtree(run)
    figure(truncations=times)


def damaged(data: bytes, times: int, chance: random.Random) -> Iterator[bytes]:
    """The content with one bit flipped, so many times, and with one page of zeros, a third as many times."""
    for _ in range(times):
        yield runs.flip_bit(data, chance.randrange(8 * len(data)))
    for _ in range(times // 3):
        yield runs.zero_page(data, chance.randrange(len(data) // 4096 + 1))


def same(left: object, right: object) -> bool:
    """Equality of what a checkpoint holds, to the bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@count("T8")
def test_t8_no_damaged_checkpoint_loads_as_something_else(times, tmp_path, stopped_run, chance, figure):
    source = runs.checkpoints(stopped_run[0])[-1]
    whole, sound, path = source.read_bytes(), read(source), tmp_path / source.name
    rejected = harmless = 0
    for content in damaged(whole, times, chance):
        path.write_bytes(content)
        try:
            state = read(path)
        except CheckpointError as error:
            rejected += str(path) in str(error)
        else:
            assert same(state, sound), "a damaged checkpoint was loaded as something else"
            harmless += 1
    assert rejected + harmless == times + times // 3, "an error did not name the file"
    assert rejected > harmless
    figure(damaged=rejected + harmless, rejected=rejected, loaded_equal=harmless, silently_wrong=0)


@count("T9")
def test_t9_no_damaged_export_is_accepted(times, tmp_path, stopped_run, chance, cli, figure):
    path = tmp_path / "weights.safetensors"
    shutil.copy(stopped_run[1] / path.name, path)
    shutil.copy(stopped_run[1] / f"{path.name}.sha256", tmp_path)
    whole, refused = path.read_bytes(), 0
    assert cli("verify", str(path)).code == 0
    for content in damaged(whole, times, chance):
        if content != whole:
            path.write_bytes(content)
            with pytest.raises(CheckpointError, match="sha256"):
                tensors.read_tensors(path)
            refused += 1
    message = cli("verify", str(path)).refused()
    assert str(path) in message
    path.write_bytes(whole)
    sums = path.with_name(f"{path.name}.sha256")
    for content in (runs.flip_bit(sums.read_bytes(), 5), b""):
        sums.write_bytes(content)
        assert str(path) in cli("verify", str(path)).refused()
    sums.unlink()
    assert str(path) in cli("verify", str(path)).refused()
    figure(damaged=refused, accepted=0)


def test_t10_all_checkpoints_bad_lists_each_and_starts_nothing(tmp_path, stopped_run, cli):
    run = runs.copy(stopped_run[0], tmp_path / "run")
    first, second = runs.checkpoints(run)
    first.write_bytes(first.read_bytes()[:1000])
    second.write_bytes(runs.flip_bit(second.read_bytes(), 8 * 100_000))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}
    for command in readers(run, tmp_path):
        message = cli(*command).refused()
        assert str(first) in message
        assert str(second) in message
        assert "checksum" in message
    for path in runs.checkpoints(run):
        path.unlink()
    assert "no checkpoint" in cli(*runs.train(run, recipe=SHORT)).refused()
    for path in (first, second):
        path.write_bytes(before[path])
    assert {path: path.read_bytes() for path in before} == before, "something was written into a refused run"
    first.write_bytes((stopped_run[0] / "checkpoints" / first.name).read_bytes())
    assert cli(*runs.train(run, recipe=SHORT)).code == 0  # one of them put back: the run goes on


def hostile_zip(path: Path, marker: Path) -> None:
    """A checkpoint that torch.save wrote, with a payload beside the tensors."""
    torch.save({"format": 1, "identity": Payload(marker), "step": 8, "model": {"w": torch.zeros(3)}}, path)
    assert zipfile.is_zipfile(path)


def hostile_legacy(path: Path, marker: Path) -> None:
    """The format of torch before 1.6: a bare pickle."""
    torch.save({"format": 1, "identity": Payload(marker)}, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [hostile_zip, hostile_legacy])
def test_t11_hostile_checkpoints_run_nothing(write, tmp_path, stopped_run, cli):
    marker = tmp_path / "marker"
    run = runs.copy(stopped_run[0], tmp_path / "run")
    for path in runs.checkpoints(run):
        write(path, marker)
    for command in readers(run, tmp_path):
        message = cli(*command).refused()
        assert str(runs.checkpoints(run)[-1]) in message
        assert "weights_only" not in message
    weights = tmp_path / "weights.safetensors"
    write(weights, marker)
    assert str(weights) in cli("verify", str(weights)).refused()
    assert not marker.exists()
    torch.load(runs.checkpoints(run)[0], weights_only=False)
    assert marker.exists(), "the payload is a dud"
