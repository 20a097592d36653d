"""CIFAR in the packed layout: the real ones where they are there, and every way a copy can be bad."""

import hashlib
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from timestepper.data import check, loader, open_dataset
from timestepper.data.catalogue import search_roots
from timestepper.data.cifar import NORMALISATION, locate
from timestepper.data.cifar_packed import PACKED, decode_atlas
from timestepper.errors import DataError

HERE = Path(__file__).resolve()


def place_of(name: str) -> Path | None:
    places = (root.resolve() / name for root in (*search_roots(None), HERE.parents[4] / "shared" / "data"))
    return next((place for place in places if (place / "train_0.webp").is_file()), None)


REAL = place_of("cifar10")
needs_cifar10 = pytest.mark.skipif(REAL is None, reason="no packed CIFAR-10 in TIMESTEPPER_DATA or ../shared/data")


@pytest.fixture(scope="module")
def cifar10():
    return open_dataset("cifar10", REAL.parent)


@needs_cifar10
def test_the_real_cifar10(cifar10):
    """Opening has compared the sums of files, pixels and labels; here is what they stand for."""
    assert cifar10.train.images.shape == (50_000, 32, 32, 3)
    assert cifar10.test.images.shape == (10_000, 32, 32, 3)
    assert cifar10.train.labels.bincount().tolist() == [5000] * 10
    assert cifar10.test.labels.bincount().tolist() == [1000] * 10
    assert cifar10.classes[0] == "airplane"
    assert cifar10.classes[9] == "truck"


@pytest.mark.skipif(place_of("cifar100") is None, reason="no packed CIFAR-100 in TIMESTEPPER_DATA or ../shared/data")
def test_the_real_cifar100():
    cifar100 = open_dataset("cifar100", place_of("cifar100").parent)
    assert cifar100.train.images.shape == (50_000, 32, 32, 3)
    assert cifar100.train.labels.bincount().tolist() == [500] * 100
    assert cifar100.test.labels.bincount().tolist() == [100] * 100
    assert (cifar100.classes[0], cifar100.classes[99]) == ("apple", "worm")
    pixels = cifar100.train.images[::10].double() / 255
    assert cifar100.mean == pytest.approx(pixels.mean((0, 1, 2)).tolist(), abs=5e-3)
    assert check("cifar100", place_of("cifar100").parent) == []


@needs_cifar10
def test_mean_and_deviation_are_those_of_the_training_images(cifar10):
    pixels = cifar10.train.images.view(-1, 3)
    counts = torch.stack([pixels[:, channel].int().bincount(minlength=256) for channel in range(3)]).double()
    values = torch.arange(256).double() / 255
    mean = counts @ values / counts.sum(1)
    std = (counts @ values**2 / counts.sum(1) - mean**2).sqrt()
    assert cifar10.mean == pytest.approx(mean.tolist(), abs=1e-4)
    assert cifar10.std == pytest.approx(std.tolist(), abs=1e-4)
    assert (cifar10.mean, cifar10.std) == NORMALISATION["cifar10"]


@needs_cifar10
def test_a_loader_on_the_real_images(cifar10):
    training = loader(cifar10.train, batch_size=64, seed=0, training=True, augment="crop_flip")
    images, labels = next(training.epoch(0, first_step=780))
    assert (training.steps, training.input_shape) == (781, (3, 32, 32))
    assert images.shape == (64, 3, 32, 32)
    assert abs(float(images.mean())) < 0.3
    assert labels.max() <= 9


@needs_cifar10
def test_the_search_for_a_root(monkeypatch, tmp_path):
    """The environment comes first, then ./data, then ../shared/data; the data folder itself may be given too."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("TIMESTEPPER_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"cifar10 not found in data, \.\./shared/data: expected cifar-10-batches-py/ or c"
    ):
        open_dataset("cifar10")
    for place in ("../shared/data", "data", "elsewhere"):
        Path(place).mkdir(parents=True)
        (Path(place) / "cifar10").symlink_to(REAL, target_is_directory=True)
        if place == "elsewhere":
            monkeypatch.setenv("TIMESTEPPER_DATA", place)
        assert locate("cifar10", search_roots(None)) == (PACKED["cifar10"], Path(place) / "cifar10")
    assert locate("cifar10", [REAL]) == (PACKED["cifar10"], REAL)


@pytest.fixture(scope="module")
def flat_cifar100(tmp_path_factory):
    """A CIFAR-100 of flat colours, which is not the real one. The atlases are links to one."""
    folder = tmp_path_factory.mktemp("packed") / "cifar100"
    folder.mkdir()
    Image.new("RGB", (3200, 3200), (10, 20, 30)).save(folder / "train_0.webp", lossless=True, method=0)
    for name in (*PACKED["cifar100"].train[1:], *PACKED["cifar100"].test):
        (folder / name).symlink_to(folder / "train_0.webp")
    for half, count in (("train", 50_000), ("test", 10_000)):
        np.save(folder / f"{half}_labels.npy", np.arange(count, dtype=np.uint8) % 100)
    (folder / "classes.txt").write_text("\n".join(f"class{number}" for number in range(100)))
    return folder


def sums_of(folder: Path) -> dict[str, str]:
    return {file: hashlib.sha256((folder / file).read_bytes()).hexdigest() for file in PACKED["cifar100"].files}


def test_a_whole_data_set_that_is_another_is_refused_with_both_sums(flat_cifar100):
    found, expected = (sums["classes.txt"] for sums in (sums_of(flat_cifar100), PACKED["cifar100"].sums))
    with pytest.raises(DataError, match=f"classes.txt: sha256 {found}, expected sha256 {expected}"):
        open_dataset("cifar100", flat_cifar100.parent)
    assert [Path(path).name for path, _ in check("cifar100", flat_cifar100.parent)] == [*PACKED["cifar100"].files]


def test_an_atlas_is_read_row_by_row():
    """Image n stands in row n // 100 and column n % 100; within it, rows come first, too."""
    place = np.arange(3200)
    atlas = np.empty((3200, 3200, 3), np.uint8)
    atlas[..., 0] = (place // 32)[:, None]
    atlas[..., 1] = place // 32
    atlas[..., 2] = 3 * (place % 32)[:, None] + place % 32
    buffer = io.BytesIO()
    Image.fromarray(atlas).save(buffer, "png", compress_level=1)
    images = decode_atlas(Path("atlas"), buffer.getvalue())
    assert images.shape == (10_000, 32, 32, 3)
    numbers = np.arange(10_000)
    assert (images[..., 0] == (numbers // 100)[:, None, None]).all()
    assert (images[..., 1] == (numbers % 100)[:, None, None]).all()
    assert (images[..., 2] == 3 * np.arange(32)[:, None] + np.arange(32)).all()


@pytest.mark.parametrize("wrong", ["pixels", "labels"])
def test_a_decoder_that_gives_other_values_is_noticed(flat_cifar100, wrong):
    pixels, labels = np.full((10_000, 32, 32, 3), (10, 20, 30), np.uint8), np.arange(10_000, dtype=np.uint8) % 100
    known = [hashlib.sha256(values.data).hexdigest() for values in (pixels, labels)]
    layout = replace(PACKED["cifar100"], sums=sums_of(flat_cifar100), decoded={"test": tuple(known)})
    read_pixels, read_labels = layout.read_half(flat_cifar100, train=False)
    assert np.array_equal(read_pixels, pixels)
    assert read_labels.tolist() == labels.tolist()
    found = known[wrong == "labels"]
    known[wrong == "labels"] = "0" * 64
    with pytest.raises(
        DataError, match=f"{wrong} of test: decoded to sha256 {found}, expected 0000.*not lossless here"
    ):
        replace(layout, decoded={"test": tuple(known)}).read_half(flat_cifar100, train=False)


def test_a_decoder_that_reads_no_webp_is_told(tmp_path):
    with pytest.raises(DataError, match=r"train_3.webp: not an atlas of 100 x 100 images of 32 x 32"):
        decode_atlas(tmp_path / "train_3.webp", b"RIFF")
