"""CIFAR in the packed layout: the real CIFAR-10 where it is there, and every way a copy can be bad."""

import hashlib
import io
import os
import shutil
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
REAL = next(
    (
        root.resolve() / "cifar10"
        for root in (*search_roots(None), HERE.parents[4] / "shared" / "data")
        if (root / "cifar10" / "train_0.webp").is_file()
    ),
    None,
)
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
def test_check_lists_every_bad_file(tmp_path):
    reasons = damaged_copy(tmp_path)
    assert check("cifar10", tmp_path) == [(f"{tmp_path}/cifar10/{file}", reason) for file, reason in reasons.items()]


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


def damaged_copy(root: Path) -> dict[str, str]:
    """Links to the real files but for three; the reasons expected for these."""
    folder = root / "cifar10"
    folder.mkdir(parents=True)
    sums = PACKED["cifar10"].sums
    for file in sums:
        (folder / file).symlink_to(REAL / file)
    for file in ("train_2.webp", "test_0.webp", "test_labels.npy"):
        (folder / file).unlink()
    cut = (REAL / "train_2.webp").read_bytes()[:-1]
    (folder / "train_2.webp").write_bytes(cut)
    flipped = bytearray((REAL / "test_labels.npy").read_bytes())
    flipped[5000] ^= 1
    (folder / "test_labels.npy").write_bytes(flipped)

    def reason(data):
        return f"sha256 {hashlib.sha256(data).hexdigest()}, expected sha256 "

    advice = "is damaged, cut short or another one: copy or download the data set again"
    return {
        "train_2.webp": f"{reason(cut)}{sums['train_2.webp']}; the file ({len(cut)} bytes) {advice}",
        "test_0.webp": f"missing (expected sha256 {sums['test_0.webp']}); copy or download the data set again",
        "test_labels.npy": f"{reason(flipped)}{sums['test_labels.npy']}; the file ({len(flipped)} bytes) {advice}",
    }


@needs_cifar10
def test_a_damaged_copy_cannot_be_opened(tmp_path):
    reasons = damaged_copy(tmp_path)
    with pytest.raises(DataError) as caught:
        open_dataset("cifar10", tmp_path)
    assert str(caught.value) == f"{tmp_path}/cifar10/train_2.webp: {reasons['train_2.webp']}"


@pytest.fixture(scope="module")
def flat_cifar100(tmp_path_factory):
    """A CIFAR-100 of flat colours: the layout without known sums. The atlases are links to one."""
    folder = tmp_path_factory.mktemp("packed") / "cifar100"
    folder.mkdir()
    Image.new("RGB", (3200, 3200), (10, 20, 30)).save(folder / "train_0.webp", lossless=True, method=0)
    for name in (*PACKED["cifar100"].train[1:], *PACKED["cifar100"].test):
        (folder / name).symlink_to(folder / "train_0.webp")
    for half, count in (("train", 50_000), ("test", 10_000)):
        np.save(folder / f"{half}_labels.npy", np.arange(count, dtype=np.uint8) % 100)
    (folder / "classes.txt").write_text("\n".join(f"class{number}" for number in range(100)))
    return folder


def test_packed_cifar100_opens_without_known_sums(flat_cifar100):
    dataset = open_dataset("cifar100", flat_cifar100.parent)
    assert dataset.train.images[123, 4, 5].tolist() == [10, 20, 30]
    assert dataset.train.labels[:101].tolist() == [*range(100), 0]
    assert len(dataset.test) == 10_000
    assert len(dataset.classes) == 100
    assert (dataset.mean, dataset.std) == NORMALISATION["cifar100"]
    assert len(dataset.sha256) == 64


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


def test_check_judges_by_content_where_no_sum_is_known(flat_cifar100, tmp_path):
    assert check("cifar100", flat_cifar100.parent) == []
    folder = tmp_path / "cifar100"
    shutil.copytree(flat_cifar100, folder, copy_function=os.symlink)
    for file in ("train_4.webp", "test_labels.npy", "classes.txt"):
        (folder / file).unlink()
        (folder / file).write_bytes(b"nonsense")
    assert [Path(path).name for path, _ in check("cifar100", tmp_path)] == [
        "train_4.webp",
        "test_labels.npy",
        "classes.txt",
    ]


def labels_of(values, count=50_000):
    return np.resize(np.arange(values, dtype=np.uint8), count)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("classes.txt", b"cat\ndog\n", "2 classes, expected 100: this is not cifar100; copy the right files"),
        ("classes.txt", b"cat\n" * 100, "classes.txt: 1 classes, expected 100: this is not cifar100"),
        (
            "train_labels.npy",
            labels_of(10),
            "10 different labels up to 9, expected all of 0 to 99: this is not cifar100; copy the right files",
        ),
        ("train_labels.npy", labels_of(101), "101 different labels up to 100, expected all of 0 to 99"),
        ("train_labels.npy", labels_of(100, 40_000), r"uint8 \(40000,\), expected uint8 \(50000,\); copy it again"),
        ("train_labels.npy", labels_of(100).astype(np.int64), "int64 .* expected uint8"),
        ("train_labels.npy", np.array([{}] * 50_000), "not a plain .npy array .*allow_pickle"),
        ("train_labels.npy", b"", "not a plain .npy array"),
        ("train_3.webp", b"", "train_3.webp: not an atlas of 100 x 100 images of 32 x 32"),
        ("train_3.webp", Image.new("RGB", (64, 64)), "train_3.webp: not an atlas"),
        ("train_1.webp", None, "train_1.webp: missing .no sha256 is known for it"),
    ],
)
def test_bad_files_without_known_sums_are_named(flat_cifar100, tmp_path, file, content, message):
    folder = tmp_path / "cifar100"
    shutil.copytree(flat_cifar100, folder, copy_function=os.symlink)
    (folder / file).unlink()
    if isinstance(content, bytes):
        (folder / file).write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(folder / file, content)
    elif content is not None:
        content.save(folder / file, lossless=True)
    with pytest.raises(DataError, match=message):
        open_dataset("cifar100", tmp_path)


@pytest.mark.parametrize("wrong", ["pixels", "labels"])
def test_a_decoder_that_gives_other_values_is_noticed(flat_cifar100, wrong):
    pixels, labels = PACKED["cifar100"].read_half(flat_cifar100, train=False)
    known = [hashlib.sha256(values.tobytes()).hexdigest() for values in (pixels, labels.astype(np.uint8))]
    layout = replace(PACKED["cifar100"], decoded={"test": tuple(known)})
    layout.read_half(flat_cifar100, train=False)
    found = known[wrong == "labels"]
    known[wrong == "labels"] = "0" * 64
    layout = replace(layout, decoded={"test": tuple(known)})
    with pytest.raises(
        DataError, match=f"{wrong} of test: decoded to sha256 {found}, expected 0000.*not lossless here"
    ):
        layout.read_half(flat_cifar100, train=False)


@needs_cifar10
def test_packed_cifar10_given_as_cifar100(tmp_path):
    with pytest.raises(DataError, match=r"cifar100 not found in .*cifar10 holds cifar10"):
        open_dataset("cifar100", hidden(tmp_path / "a", "cifar10").parent)
    with pytest.raises(DataError, match=r"classes.txt: 10 classes, expected 100: this is not cifar100"):
        open_dataset("cifar100", hidden(tmp_path / "b", "cifar100").parent)


def hidden(root: Path, name: str) -> Path:
    root.mkdir()
    (root / name).symlink_to(REAL, target_is_directory=True)
    return root / name


def test_the_known_sums_refuse_other_pixels(flat_cifar100):
    """A file that decodes well and is not CIFAR-10's has the wrong sum, and both are told."""
    found = hashlib.sha256((flat_cifar100 / "classes.txt").read_bytes()).hexdigest()
    with pytest.raises(DataError, match=f"classes.txt: sha256 {found}, expected sha256 bb3914949cec"):
        open_dataset("cifar10", flat_cifar100)
