"""Image folders: the layout and its mistakes, and what becomes of single files."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torchvision
from digit_folder import write_digit_folder
from hostile_files import huge_png
from PIL import Image

from timestepper.data import check, loader, open_dataset
from timestepper.data.decode import decode_rgb
from timestepper.data.windows import View, Windows
from timestepper.data.worker import Memory, fill
from timestepper.errors import DataError


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_digit_folder(tmp_path_factory.mktemp("digits"), per_class=10)


@pytest.fixture
def root(written, tmp_path):
    return shutil.copytree(written, tmp_path / "root")


def read_all(root, **options):
    images = open_dataset("folder", root, size=8).train
    return list(loader(images, batch_size=10, seed=0, training=False, **options).epoch(0))


def test_some_images_of_a_folder_are_of_all_its_classes(root):
    whole = open_dataset("folder", root, size=8).train
    some = whole.some(20)
    assert some.labels.bincount().tolist() == [2] * 10
    assert some.paths == whole.paths[::5]
    assert some.input_shape == whole.input_shape
    assert whole.some(1000).paths == whole.paths


def test_a_good_folder(root):
    (root / "train" / "3" / "notes.txt").write_text("not an image")
    (root / "train" / "3" / ".hidden.png").write_text("not an image")
    (root / "train" / ".cache").mkdir()
    dataset = open_dataset("folder", root, size=16)
    assert dataset.classes == tuple("0123456789")
    assert (len(dataset.train), len(dataset.test)) == (100, 50)
    assert dataset.train.labels.bincount().tolist() == [10] * 10
    assert dataset.train.paths[37] == str(root / "train" / "3" / "007.png")
    assert dataset.train.labels[37] == 3
    assert (dataset.train.size, dataset.train.resize) == (16, 18)
    assert dataset.train.input_shape == (3, 16, 16)
    assert dataset.mean == (0.485, 0.456, 0.406)
    assert check("folder", root) == []


def test_the_sum_stands_for_names_and_sizes_wherever_the_folder_lies(root, tmp_path):
    first = open_dataset("folder", root)
    moved = root.rename(tmp_path / "moved")
    assert open_dataset("folder", moved).sha256 == first.sha256
    assert open_dataset("folder", moved).facts == first.facts
    (moved / "val" / "0" / "000.png").rename(moved / "val" / "0" / "zzz.png")
    renamed = open_dataset("folder", moved)
    assert {fact for fact in first.facts if first.facts[fact] != renamed.facts[fact]} == {"names and sizes"}
    with open(moved / "train" / "0" / "000.png", "ab") as file:
        file.write(b"more")
    larger = open_dataset("folder", moved)
    assert len({dataset.sha256 for dataset in (first, renamed, larger)}) == 3
    assert larger.facts["bytes"] == renamed.facts["bytes"] + 4


def test_folders_in_a_class_are_read_in_torchvisions_order(root, tmp_path):
    for number, below in enumerate(("b/x", "b-c", "a", "b")):
        (root / "train" / "3" / below).mkdir(parents=True, exist_ok=True)
        shutil.copy(root / "train" / "4" / f"00{number}.png", root / "train" / "3" / below / f"{9 - number}.png")
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(root / "train" / "4" / "007.png", tmp_path / "elsewhere" / "linked.png")
    (root / "train" / "3" / "link").symlink_to(tmp_path / "elsewhere")
    found = open_dataset("folder", root).train
    expected = torchvision.datasets.ImageFolder(str(root / "train")).samples
    assert list(zip(found.paths, found.labels.tolist(), strict=True)) == expected
    assert len(expected) == 105


def test_a_folder_that_holds_itself_is_named(root):
    (root / "train" / "3" / "inner").mkdir()
    (root / "train" / "3" / "inner" / "outer").symlink_to(root / "train" / "3")
    with pytest.raises(DataError, match=r"train/3/inner/outer: a link to a folder that it lies in; remove it"):
        open_dataset("folder", root)


def one_class(root):
    for split in ("train", "val"):
        for label in range(1, 10):
            shutil.rmtree(root / split / str(label))


def without_images(root):
    for file in root.glob("*/*/*.png"):
        file.rename(file.with_suffix(".txt"))


def without_classes(root):
    for number, file in enumerate(root.glob("train/*/*.png")):
        file.rename(root / "train" / f"{number}.png")
    for folder in (root / "train").iterdir():
        if folder.is_dir():
            folder.rmdir()


MISTAKES = {
    "parent": (lambda root: root.parent, r"found root; did you mean {root}\?"),
    "inside": (lambda root: root / "train", "found 0, 1, 2, 3, 4, ...; give the folder above, {root}"),
    "class": (lambda root: root / "train" / "0", "found no folder at all; give the folder that holds train/ and val/"),
    "absent": (lambda root: root / "absent", "absent: no such folder; expected train/<class>/<image> and val/"),
    "no val": (lambda root: shutil.rmtree(root / "val"), "found train; val/ is missing"),
    "no train": (lambda root: shutil.rmtree(root / "train"), "found val; train/ is missing"),
    "fewer in val": (
        lambda root: shutil.rmtree(root / "val" / "7"),
        "same classes, found 10 and 9; only in train: 7; only in val: none",
    ),
    "other in val": (
        lambda root: (root / "val" / "7").rename(root / "val" / "seven"),
        "found 10 and 10; only in train: 7; only in val: seven",
    ),
    "empty class": (
        lambda root: [file.unlink() for file in (root / "train" / "4").iterdir()],
        "train: no images in 1 of 10 classes: 4; fill or remove them",
    ),
    "one class": (one_class, "found 1 class .0., expected at least 2 to tell apart"),
    "no images": (
        without_images,
        r"train: no images in 10 of 10 classes: 0, 1, 2, 3, 4 and 5 more; fill or remove them \(names of images end in",
    ),
    "no classes": (without_classes, "train: .*found no class folder and 100 images; make one folder per class"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_the_layout_say_what_was_found_and_expected(root, mistake):
    make, message = MISTAKES[mistake]
    made = make(root)
    given = made if mistake in ("parent", "inside", "class", "absent") else root
    for call in (open_dataset, check):
        with pytest.raises(DataError, match=message.format(root=root)) as caught:
            call("folder", given)
        assert "\n" not in str(caught.value)


def test_imagenet_has_a_thousand_classes(root, tmp_path, monkeypatch):
    with pytest.raises(DataError, match="10 classes, but imagenet has 1000; for another image folder use 'folder'"):
        open_dataset("imagenet", root)
    image = root / "train" / "0" / "000.png"
    for split in ("train", "val"):
        for number in range(1000):
            folder = tmp_path / "imagenet" / split / f"n{number:08}"
            folder.mkdir(parents=True)
            (folder / "one.JPEG").symlink_to(image)
    monkeypatch.setenv("TIMESTEPPER_DATA", str(tmp_path))
    dataset = open_dataset("imagenet")
    assert len(dataset.classes) == 1000
    assert dataset.train.input_shape == (3, 224, 224)
    assert dataset.train.resize == 256


def test_sizes_must_make_sense(root):
    with pytest.raises(DataError, match="size 64 must be at least 1 and at most resize 32"):
        open_dataset("folder", root, size=64, resize=32)
    with pytest.raises(DataError, match="size 0 must be at least 1"):
        open_dataset("folder", root, size=0)


def test_every_image_needs_a_label(root):
    images = open_dataset("folder", root).train
    with pytest.raises(DataError, match="100 image files but 99 labels"):
        replace(images, labels=images.labels[1:])
    with pytest.raises(DataError, match="labels run from 0 to 9, but 9 classes"):
        replace(images, classes=9)


def noisy_jpeg() -> bytes:
    noise = np.random.default_rng(0).integers(256, size=(64, 64, 3), dtype=np.uint8)
    buffer = BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG")
    return buffer.getvalue()


BAD = {
    "truncated.jpg": (noisy_jpeg()[:2000], "truncated"),
    "truncated.png": (huge_png(100, 100), "truncated|broken|incomplete|unrecognized"),
    "empty.png": (b"", "not an image of a known format"),
    "garbage.jpg": (bytes(range(256)) * 20, "not an image of a known format"),
    "text.png": (b"<html>404 not found</html>", "not an image of a known format"),
    "huge.png": (huge_png(100_000, 100_000), "could be decompression bomb"),
    "rather_huge.png": (huge_png(10_000, 10_000), "could be decompression bomb"),
}


def place(root: Path, name: str, split: str = "train") -> Path:
    path = root / split / "5" / name
    path.write_bytes(BAD[name][0])
    return path


def test_check_lists_every_bad_file_among_many(root, recwarn):
    placed = {str(place(root, name)): BAD[name][1] for name in BAD}
    placed[str(place(root, "empty.png", "val"))] = "not an image"
    (root / "val" / "0" / "gone.png").symlink_to(root / "nowhere")
    placed[str(root / "val" / "0" / "gone.png")] = "No such file"
    (root / "val" / "0" / "itself.png").symlink_to("itself.png")
    placed[str(root / "val" / "0" / "itself.png")] = "Too many levels of symbolic links"
    (root / "val" / "itself").symlink_to("itself")
    seen = []
    found = check("folder", root, progress=lambda done, total: seen.append((done, total)))
    assert {path for path, _ in found} == set(placed)
    assert len(found) == len(placed)
    for path, reason in found:
        assert re.search(placed[path], reason), (path, reason)
        assert path not in reason
    assert seen[-1] == (160, 160)
    assert not [warning for warning in recwarn if warning.category is Image.DecompressionBombWarning]


@pytest.mark.parametrize(("name", "workers"), [*((name, 0) for name in BAD), ("truncated.jpg", 1), ("huge.png", 1)])
def test_a_bad_file_stops_the_epoch_with_its_path(root, name, workers):
    path = place(root, name)
    with pytest.raises(DataError) as caught:
        read_all(root, workers=workers)
    message = str(caught.value)
    assert message.startswith(f"{path}: cannot be read as an image: ")
    assert re.search(BAD[name][1], message)
    assert "`timestepper check-data` lists every such file" in message
    assert "\n" not in message


def test_a_file_that_vanished_after_the_scan_is_named(root):
    images = open_dataset("folder", root, size=8).train
    Path(images.paths[15]).unlink()
    with pytest.raises(DataError, match=f"{images.paths[15]}: cannot be read as an image: No such file or directory"):
        list(loader(images, batch_size=10, seed=0, training=False).epoch(0))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_class_is_named(root):
    (root / "train" / "5").chmod(0)
    with pytest.raises(DataError, match=r"train/5: cannot be listed .Permission denied"):
        open_dataset("folder", root)


def test_a_pipe_is_listed_and_never_opened(root):
    """Nobody writes to it: whoever opened it would wait for ever."""
    path = root / "train" / "0" / "pipe.jpg"
    os.mkfifo(path)
    assert check("folder", root) == [(str(path), "it is a device or a pipe")]
    images = open_dataset("folder", root, size=8).train
    for decode in ("cpu", "gpu"):
        with pytest.raises(DataError, match=r"pipe.jpg: cannot be read as an image: it is a device or a pipe"):
            read_sample_as_worker(str(path), decode)
    with pytest.raises(DataError, match=r"pipe.jpg: cannot be read as an image: it is a device or a pipe"):
        list(loader(images, batch_size=10, seed=0, training=False, workers=1).epoch(0))


def read_sample_as_worker(path: str, decode: str) -> None:
    """Into memory for one sample, with room for its file where a GPU is to decode it."""
    room = 1000 if decode == "gpu" else 0
    with tempfile.TemporaryFile() as file:
        file.truncate(Memory.bytes_each(8, room))
        fill(0, path, 0, Memory(file.fileno(), 8, room), Windows(View(8, 8)), 0)


def odd_images():
    """Name to (image, file ending, colour expected as RGB)."""
    palette = Image.new("P", (9, 9), 1)
    palette.putpalette([0, 0, 0, 200, 100, 50])
    clear = palette.copy()
    clear.info["transparency"] = b"\x80\x80"
    return {
        "grey": (Image.new("L", (9, 9), 90), ".png", (90, 90, 90)),
        "bilevel": (Image.new("1", (9, 9), 1), ".png", (255, 255, 255)),
        "grey with alpha": (Image.new("LA", (9, 9), (90, 128)), ".png", (90, 90, 90)),
        "rgba": (Image.new("RGBA", (9, 9), (200, 100, 50, 128)), ".png", (200, 100, 50)),
        "palette": (palette, ".png", (200, 100, 50)),
        "transparent palette": (clear, ".png", (200, 100, 50)),
        "cmyk": (Image.new("CMYK", (9, 9), (0, 255, 255, 0)), ".jpg", (255, 0, 0)),
        "16 bit": (Image.fromarray(np.full((9, 9), 0x8123, np.uint16)), ".png", (0x81, 0x81, 0x81)),
        "16 bit tiff": (Image.fromarray(np.full((9, 9), 0xFFFF, np.uint16)), ".tif", (255, 255, 255)),
        "32 bit tiff": (Image.fromarray(np.full((9, 9), 0x12345678, np.int32)), ".tif", (255, 255, 255)),
        "32 bit tiff below zero": (Image.fromarray(np.full((9, 9), -5, np.int32)), ".tif", (0, 0, 0)),
        "gif": (palette.copy(), ".gif", (200, 100, 50)),
    }


@pytest.mark.parametrize("kind", odd_images())
def test_valid_odd_modes_become_rgb(tmp_path, kind, recwarn):
    image, ending, expected = odd_images()[kind]
    path = tmp_path / f"odd{ending}"
    image.save(path, **({"quality": 100} if ending == ".jpg" else {}))
    decoded = decode_rgb(str(path))
    assert decoded.mode == "RGB"
    assert not recwarn.list
    assert decoded.getpixel((4, 4)) == pytest.approx(expected, abs=2 if ending == ".jpg" else 0)


def test_floating_point_pixels_are_refused(tmp_path):
    Image.fromarray(np.full((9, 9), 0.5, np.float32)).save(tmp_path / "float.tif")
    with pytest.raises(ValueError, match="floating-point pixels, whose range is not known"):
        decode_rgb(str(tmp_path / "float.tif"))


def test_a_huge_header_costs_no_memory(root):
    """Decoding 10^8 pixels would take 300 MB; refusing takes none. Measured in a process of its own."""
    path = place(root, "rather_huge.png")
    code = (
        "import resource, sys\n"
        "from timestepper.data.decode import decode_rgb, refuse_bombs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "refuse_bombs()\n"
        "try: decode_rgb(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["DecompressionBombWarning", "True"]


def test_a_file_of_a_format_that_starts_other_programs_is_no_image(root):
    """Pillow would hand it to Ghostscript, whatever its name is."""
    path = root / "train" / "0" / "eps.png"
    Image.new("RGB", (8, 8)).save(path, "EPS")
    assert Image.open(path).format == "EPS"
    assert check("folder", root) == [(str(path), "not an image of a known format")]
