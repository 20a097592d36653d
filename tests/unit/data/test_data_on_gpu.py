"""The reader that decodes on the GPU. It runs on a CPU too, with torchvision's decoder for CPUs in the GPU's place."""

import io
import os
import re
import threading
from dataclasses import replace

import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image

from timestepper.data import loader, on_gpu, open_dataset, streamed
from timestepper.data.augment import Normaliser
from timestepper.data.jpeg import baseline_size
from timestepper.data.on_gpu import GpuReader, gpu_decodes
from timestepper.errors import DataError, UnknownNameError

CPU = torch.device("cpu")


def photograph(number=0):
    """A part of a real one, another for each number."""
    whole = Image.fromarray(load_sample_image("china.jpg"))
    return whole.crop((3 * number, 2 * number, 200 + 5 * number, 150 + 3 * number))


def encoded(image, **options):
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """24 photographs: JPEGs of many kinds, and one file in eight is a PNG with the name of a JPEG."""
    root = tmp_path_factory.mktemp("photographs")
    for split in ("train", "val"):
        for number in range(24):
            folder = root / split / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            image = photograph(number).convert(("RGB", "L", "CMYK")[number // 4 % 3 if number > 8 else 0])
            if number % 8 == 7:
                image.convert("RGB").save(folder / f"{number}.jpg", "PNG")
            else:
                image.save(folder / f"{number}.jpg", progressive=number % 8 == 5, subsampling=number % 3)
    return root


@pytest.fixture
def folder(root):
    return open_dataset("folder", root, size=48)


def gpu_batches(images, device=CPU, workers=1, first_step=0, **options):
    """The batches of a loader, by the reader for GPUs on whatever device."""
    options = {"batch_size": 8, "seed": 3, "training": True, "augment": "resized_crop"} | options
    batches = loader(images, **options, device=device, workers=workers, decode="cpu")
    batches._gpu = GpuReader(batches.view, device)
    return list(batches.epoch(0, first_step))


def cpu_batches(images, **options):
    options = {"batch_size": 8, "seed": 3, "training": True, "augment": "resized_crop"} | options
    return list(loader(images, **options).epoch(0))


def levels(batch, other):
    """The largest difference of two batches and their mean one, in levels of 256."""
    difference = (batch - other).abs() * torch.tensor((0.229, 0.224, 0.225))[:, None, None] * 255
    return difference.max().item(), difference.mean().item()


@pytest.mark.parametrize("training", [True, False])
def test_both_ways_give_the_same_images(folder, training):
    """The same parts of the same files, in the same order; here one decoder, so that only the last rounding differs."""
    ours, theirs = gpu_batches(folder.train, training=training), cpu_batches(folder.train, training=training)
    assert len(ours) == len(theirs) == 3
    for (images, labels), (others, other_labels) in zip(ours, theirs, strict=True):
        assert torch.equal(labels, other_labels)
        largest, mean = levels(images, others)
        assert largest < 1.01
        assert mean < 0.1


def test_the_number_of_workers_changes_nothing_and_an_epoch_can_start_anywhere(folder):
    reference = gpu_batches(folder.train, batch_size=2)
    again = gpu_batches(folder.train, batch_size=2, workers=3)
    late = gpu_batches(folder.train, batch_size=2, workers=0, first_step=5)
    for one, other in zip([*reference, *reference[5:]], [*again, *late], strict=True):
        assert torch.equal(one[0], other[0])


def test_empty_slots_are_black_and_carry_no_label(folder):
    *_, (images, labels) = gpu_batches(folder.train, training=False, batch_size=10)
    assert labels.tolist()[4:] == [-1] * 6
    black = Normaliser(folder.mean, folder.std, CPU)(torch.zeros(6, 48, 48, 3, dtype=torch.uint8))
    assert torch.equal(images[4:], black)


def test_what_the_decoder_refuses_is_read_by_the_cpu(folder, capsys, monkeypatch):
    """One call in two fails: nothing changes but one line that says so."""
    calls = []

    def moody(device):
        decode = decoder(device)

        def decode_or_fail(files):
            calls.append(len(files))
            if len(calls) % 2:
                raise RuntimeError("the engine is gone\nat line 7")
            return decode(files)

        return decode_or_fail

    decoder = on_gpu.decoder
    monkeypatch.setattr(on_gpu, "decoder", moody)
    on_gpu.tell_once.cache_clear()
    ours = gpu_batches(folder.train)
    assert len(calls) == 3
    for (images, _), (others, _) in zip(ours, cpu_batches(folder.train), strict=True):
        assert levels(images, others)[0] < 1.01
    line = "the JPEG decoder of cpu failed (the engine is gone): the CPU reads what it cannot\n"
    assert capsys.readouterr().out == line


def test_files_too_large_for_the_memory_are_read_by_the_cpu(folder, monkeypatch):
    sizes = sorted(os.path.getsize(path) for path in folder.train.paths)
    monkeypatch.setattr(streamed, "ROOM", sizes[12])
    decoded = []

    def counting(device):
        decode = decoder(device)
        return lambda files: decoded.extend(map(len, files)) or decode(files)

    decoder = on_gpu.decoder
    monkeypatch.setattr(on_gpu, "decoder", counting)
    ours = gpu_batches(folder.train)
    assert decoded
    assert max(decoded) <= sizes[12]
    for (images, _), (others, _) in zip(ours, cpu_batches(folder.train), strict=True):
        assert levels(images, others)[0] < 1.01


@pytest.mark.parametrize("damage", ["cut short", "empty", "text", "missing", "scrambled"])
def test_a_file_that_nothing_can_read_is_named(folder, tmp_path, damage):
    bad = tmp_path / "bad.jpg"
    whole = encoded(photograph())
    content = {
        "cut short": whole[: len(whole) // 2],
        "empty": b"",
        "text": b"404",
        "scrambled": whole[:200] + whole[300:],
    }
    if damage != "missing":
        bad.write_bytes(content[damage])
    paths = (*folder.train.paths[:13], str(bad), *folder.train.paths[14:])
    before = set(threading.enumerate())
    with pytest.raises(DataError, match=f"{bad}: cannot be read as an image: .*") as caught:
        gpu_batches(replace(folder.train, paths=paths))
    assert "\n" not in str(caught.value)
    assert set(threading.enumerate()) <= before


def test_large_photographs_are_decoded_a_few_at_a_time(folder, monkeypatch):
    monkeypatch.setattr(on_gpu, "_PIXELS", 3 * 200 * 150)
    sizes = []

    def counting(device):
        decode = decoder(device)
        return lambda files: sizes.append(len(files)) or decode(files)

    decoder = on_gpu.decoder
    monkeypatch.setattr(on_gpu, "decoder", counting)
    few = gpu_batches(folder.train)
    assert max(sizes) <= 3
    monkeypatch.undo()
    for one, other in zip(few, gpu_batches(folder.train), strict=True):
        assert torch.equal(one[0], other[0])


def test_only_ordinary_jpegs_are_for_the_gpu():
    grey, colour = photograph().convert("L"), photograph()
    size = colour.size
    assert baseline_size(encoded(colour)) == size
    for subsampling in (0, 1, 2):
        assert baseline_size(encoded(colour, subsampling=subsampling, quality=20)) == size
    assert baseline_size(encoded(colour, exif=b"Exif\0\0" + bytes(60_000), comment=b"\xff\xd9")) == size
    assert baseline_size(encoded(colour, restart_marker_blocks=4)) == size
    for image, options in (
        (colour, {"progressive": True}),
        (colour.convert("CMYK"), {}),
        (grey, {}),  # of which the GPU's decoder makes other pixels from call to call
        (colour, {"keep_rgb": True}),
    ):
        assert baseline_size(encoded(image, **options)) is None
    whole = encoded(colour, exif=b"Exif\0\0" + encoded(grey.resize((16, 12))))  # a thumbnail, with an end of its own
    assert baseline_size(whole + b"garbage behind the end") == size
    for length in (0, 1, 2, 3, 10, 100, 700, len(whole) // 2, len(whole) - 1):
        assert baseline_size(whole[:length]) is None, length
    frame = b"\xc0\0\x11\x08"
    huge = whole.replace(frame + size[1].to_bytes(2) + size[0].to_bytes(2), frame + b"\xff" * 4)
    assert huge != whole
    assert baseline_size(huge) is None
    png = io.BytesIO()
    colour.save(png, "PNG")
    assert baseline_size(png.getvalue()) is None


def test_who_decodes(folder):
    assert not gpu_decodes(folder.train, CPU, "auto")
    assert not gpu_decodes(folder.train, CPU, "cpu")
    with pytest.raises(
        DataError, match=r"data.decode cannot be gpu on cpu: the device is no GPU; set data.decode=cpu, with"
    ):
        gpu_decodes(folder.train, CPU, "gpu")
    with pytest.raises(UnknownNameError, match="no decoder is called 'GPU'; there are cpu, gpu, auto"):
        loader(folder.train, batch_size=8, seed=0, training=False, decode="GPU")
    assert on_gpu.obstacle(CPU) == ""
    assert on_gpu.mostly_jpeg(folder.train)
    others = tuple(f"{number}.png" for number in range(12))
    assert not on_gpu.mostly_jpeg(replace(folder.train, paths=(*folder.train.paths[:12], *others)))


def test_a_decoder_that_shows_something_else_is_not_used(monkeypatch):
    monkeypatch.setattr(on_gpu, "decoder", lambda device: lambda files: [torch.zeros(3, 256, 256, dtype=torch.uint8)])
    on_gpu.obstacle.cache_clear()
    assert re.fullmatch(r"its pixels differ from the CPU's by up to 2\d\d levels", on_gpu.obstacle(CPU))
    on_gpu.obstacle.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("training", [True, False])
def test_the_gpus_own_decoder_is_close_and_repeats(folder, training):
    device = torch.device("cuda")  # without a number, as users say it
    assert gpu_decodes(folder.train, device, "gpu")
    ours, again = (gpu_batches(folder.train, device, training=training) for _ in range(2))
    theirs = cpu_batches(folder.train, training=training)
    for (images, _), (same, _), (others, _) in zip(ours, again, theirs, strict=True):
        assert torch.equal(images, same)
        largest, mean = levels(images.cpu(), others)
        assert largest < 64
        assert mean < 2
