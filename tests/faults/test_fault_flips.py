"""A flipped bit, a lost page or a cut in every kind of file that is read: as before, or refused by name (T8, T24).

Checkpoints and exported weights have tests of their own. What carries a sum is never read as something else; what
people write by hand (recipes, sets, claims) and images may say something else, and then no more than that.
"""

import hashlib
import json
import os
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
from digit_folder import write_digit_folder
from PIL import Image
from stopping import drive

import timestepper
from timestepper import records
from timestepper.data.cifar_packed import PACKED, decode_atlas
from timestepper.data.cifar_pickled import unpickle
from timestepper.data.decode import FORMATS, read_sample
from timestepper.data.windows import View, Windows
from timestepper.engine.metrics import read_lines
from timestepper.engine.rundir import read_status
from timestepper.errors import CheckpointError, RecordError, TimestepperError
from timestepper.models import CifarResNet
from timestepper.recipe.load import load_file
from timestepper.recipe.sets import read_sets
from timestepper.report.claims import FOLDER as CLAIMS
from timestepper.report.claims import read_claim
from timestepper.runs.finish import epochs_of

ROOT = Path(__file__).parents[2]
CIFAR = ROOT.parent / "shared" / "data" / "cifar10"
RECIPE = ["smoke/digits-lstm", *runs.SHORT[1:], "run.epochs=1"]


def spoilt(data: bytes, times: int, chance: random.Random) -> Iterator[bytes]:
    """So many flipped bits, half as many cuts, and a page of zeros."""
    for _ in range(times):
        yield runs.flip_bit(data, chance.randrange(8 * len(data)))
    for _ in range(times // 2):
        yield data[: chance.randrange(len(data))]
    yield runs.zero_page(data, chance.randrange(len(data) // 4096 + 1))


def attack(
    path: Path, read: Callable[[], Any], chance: random.Random, times: int = 40, exact: bool = True
) -> dict[str, int]:
    """Read a file that was damaged so often, each time in another way; it is put back at the end."""
    whole, sound = path.read_bytes(), read()
    ends = {"refused": 0, "read": 0}
    for content in spoilt(whole, times, chance):
        path.write_bytes(content)
        told, found = "", None
        try:
            found = read()
        except TimestepperError as error:
            told = f"{error.exit_code} {error}"
        if told:
            assert told.startswith("2 ")
            assert str(path) in told
            assert "\n" not in told
        else:
            assert not exact or found == sound, f"{path.name} was read as something else"
        ends["refused" if told else "read"] += 1
    path.write_bytes(whole)
    assert read() == sound
    assert ends["refused"] or not exact
    return ends


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("flips") / "run"
    assert drive(runs.train(run, recipe=RECIPE)) is None
    return run


# -- what carries a sum ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".safetensors.sha256", ".json"])
def test_saved_controllers(suffix, tmp_path, chance):
    def plain() -> CifarResNet:
        return CifarResNet(8, 5, width=8)

    def read() -> tuple:
        net = timestepper.load_controllers(plain(), tmp_path / "steps.safetensors")
        values = {name: dt.tolist() for name, dt in net.controllers.state_dict().items()}
        return values, str(timestepper.api.find_steps(net).stepping)

    timestepper.save_controllers(timestepper.attach(plain(), start=0.3), tmp_path / "steps.safetensors")
    path = (tmp_path / "steps").with_suffix(suffix)
    if suffix == ".safetensors.sha256":  # the file that it does not fit is the one that is named
        data = path.read_bytes()
        for content in (runs.flip_bit(data, 3), data[:20], b""):
            path.write_bytes(content)
            with pytest.raises(TimestepperError, match=r"steps\.safetensors: "):
                read()
    else:
        attack(path, read, chance)


def read_record(path: Path) -> str:
    found, problems = records.read_records([path])
    if problems:
        raise RecordError(problems[0])
    return repr(found)


def test_records_and_their_curves(tmp_path, chance, finished):
    shutil.copy(finished / "record.json", tmp_path)
    attack(tmp_path / "record.json", lambda: read_record(tmp_path / "record.json"), chance)
    records.publish(finished, tmp_path / "results")
    (summary,) = (tmp_path / "results").glob("*.json")
    for path in (summary, summary.with_suffix(".npz")):
        attack(path, lambda: read_record(summary), chance)


def test_the_log_of_a_run_that_goes_on(tmp_path, chance, cli):
    """Its lines come into the record, so a changed digit counts as much as a broken line."""
    recipe = [*runs.SHORT, "run.checkpoint_steps=3"]
    source = tmp_path / "source"
    assert drive(runs.train(source, recipe=recipe), signal_after=9) == 8
    whole = (source / "metrics.jsonl").read_bytes()
    digit = whole.index(b'"loss": ') + 12
    spoils = [*spoilt(whole, 4, chance), whole[:digit] + bytes([whole[digit] ^ 1]) + whole[digit + 1 :]]
    for number, content in enumerate(spoils):
        run = runs.copy(source, tmp_path / f"run-{number}")
        (run / "metrics.jsonl").write_bytes(content)
        changes = [] if number % 2 else ["data.batch_size=128", "--override"]
        message = cli(*runs.train(run, *changes, recipe=recipe)).refused()
        assert message.startswith(f"{run / 'metrics.jsonl'} ")
        assert (run / "metrics.jsonl").read_bytes() == content


def test_a_line_of_metrics_without_its_kind(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "epoch", "step": 1}\n{"kin": "epoch", "step": 2}\n{"kind": "epoch", "step": 3}\n')
    with pytest.raises(CheckpointError, match=r"metrics.jsonl, line 2 is damaged"):
        epochs_of(tmp_path)


@pytest.mark.parametrize("name", [*PACKED["cifar10"].files])
def test_the_real_cifar(name, tmp_path, chance):
    if not (CIFAR / name).exists():
        pytest.skip(f"needs the packed CIFAR-10 in {CIFAR}")
    shutil.copyfile(CIFAR / name, tmp_path / name)
    layout = PACKED["cifar10"]
    ends = attack(tmp_path / name, lambda: layout.read_bytes(tmp_path / name), chance, times=2)
    assert ends["read"] == 0


# -- what is read without one ----------------------------------------------------------------------------------------


def test_an_atlas_whose_sum_nobody_asks_for(tmp_path, chance):
    """Its sum is asked for before; the decoder gets nothing else, and would end well if it did."""
    path = tmp_path / "train_0.webp"
    Image.fromarray(np.arange(3200 * 3200 * 3, dtype=np.uint32).astype(np.uint8).reshape(3200, 3200, 3)).save(
        path, lossless=True, quality=0, method=0
    )
    attack(path, lambda: decode_atlas(path, path.read_bytes()).sum(), chance, times=6, exact=False)


def test_cifar_batches_whose_sum_nobody_asks_for(tmp_path, chance):
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"labels": list(range(300)), "batch_label": "x"}, protocol=2))
    attack(path, lambda: repr(unpickle(path.read_bytes(), path)), chance, times=200, exact=False)


@pytest.mark.parametrize("form", FORMATS)
def test_images(form, tmp_path, chance):
    digit = next((write_digit_folder(tmp_path / "digits") / "train").rglob("*.png"))
    path = tmp_path / f"image.{form.lower()}"
    Image.open(digit).convert("RGB").save(path, form)
    windows = Windows(View(8, 8))
    attack(path, lambda: read_sample(str(path), 0, windows).tolist(), chance, times=60, exact=False)


@pytest.mark.parametrize("name", sorted(path.name for path in CLAIMS.glob("*.toml")))
def test_claims(name, tmp_path, chance):
    shutil.copy(CLAIMS / name, tmp_path)
    attack(tmp_path / name, partial(read_claim, tmp_path / name), chance, times=20, exact=False)


def test_recipes_and_sets(tmp_path, chance):
    shutil.copy(ROOT / "recipes" / "smoke" / "digits-lstm.toml", tmp_path / "recipe.toml")
    attack(tmp_path / "recipe.toml", lambda: load_file(tmp_path / "recipe.toml"), chance, exact=False)
    path = tmp_path / "set.toml"
    shutil.copy(next(path for path in sorted((ROOT / "recipes" / "study").glob("*.toml"))), path)
    attack(path, lambda: read_sets(str(path)), chance, exact=False)


def test_status_and_times(tmp_path, chance, finished):
    run = runs.copy(finished, tmp_path / "run")
    attack(run / "timing.jsonl", lambda: list(read_lines(run / "timing.jsonl")), chance, exact=False)
    attack(run / "status.json", lambda: read_status(run), chance, exact=False)
    for content in (b"", b"\xff\x00", json.dumps([1]).encode(), hashlib.sha256().digest()):
        (run / "status.json").write_bytes(content)
        assert read_status(run) is None


# -- what is no file -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "timing.jsonl", "metrics.jsonl", "checkpoints/step-00000005.pt"]
)
def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(name, tmp_path, finished, cli):
    """Nobody will ever write to it, and a process that waits for it in open() hears no signal."""
    run = runs.copy(finished, tmp_path / "run")
    (run / "status.json").unlink()
    for path in (run / name, *(run.glob("checkpoints/*") if "checkpoints" in name else ())):
        path.unlink(missing_ok=True)
    os.mkfifo(run / name)
    line = ["verify", str(run / name)] if name == "weights.safetensors" else runs.train(run, recipe=RECIPE)
    assert str(run / name) in cli(*line).refused()


@pytest.mark.parametrize("damage", [".npz", ".json"])
def test_a_pipe_among_records_is_one_problem(damage, tmp_path, finished):
    records.publish(finished, tmp_path)
    (summary,) = tmp_path.glob("*.json")
    summary.with_suffix(damage).unlink()
    os.mkfifo(summary.with_suffix(damage))
    found, problems = records.load_records(tmp_path)
    assert (len(found), len(problems)) == (0, 1)
    assert "pipe" in problems[0]
