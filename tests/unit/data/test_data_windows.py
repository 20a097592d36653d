"""Random parts, resizes and mirrors of images: torchvision's, whoever cuts them out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from interpreter import run_interpreted
from PIL import Image
from torchvision.transforms import v2

from timestepper.data.on_gpu import cut_all
from timestepper.data.windows import View, Window, Windows, cut

SIZES = [(1, 1), (1, 300), (7, 2), (500, 375), (375, 500), (64, 64), (2000, 90), (90, 2000)]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_random_parts_are_those_that_torchvision_draws(width, height):
    windows = Windows(View(64, 64, random_part=True, flip=True))
    crop, image = v2.RandomResizedCrop(64), Image.new("RGB", (width, height))
    differing = 0
    for seed in range(1, 2**63, 2**63 // 200):
        torch.manual_seed(seed)
        drawn = crop.make_params([image])
        mirrored = bool(torch.rand(1) < 0.5)
        window = windows.of(width, height, seed)
        assert window[4:8] == (64, 64, 0, 0)
        assert window.mirrored == mirrored
        differing += window[:4] != tuple(drawn[name] for name in ("left", "top", "width", "height"))
    assert differing <= 1  # torch's float32, which differs among processors, may round one to the other side


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("size", [20, 32])
def test_the_centre_is_torchvisions(width, height, size):
    image = Image.effect_noise((width, height), 90).convert("RGB")
    window = Windows(View(size, 32)).of(width, height, seed=0)
    reference = v2.Compose([v2.Resize(32), v2.CenterCrop(size)])(image)
    assert np.array_equal(np.asarray(cut(image, window, size)), np.asarray(reference))


@pytest.mark.parametrize(("width", "height"), [(1, 600), (1200, 2)])
def test_of_a_very_thin_image_only_what_is_shown_is_scaled(width, height, tmp_path):
    """Ten times as thin it would take 1.6 GB; measured in a process of its own. Pixels differ by rounding alone."""
    image = Image.effect_noise((width, height), 90).convert("RGB")
    shown = np.asarray(cut(image, Windows(View(224, 256)).of(width, height, seed=0), 224)).astype(int)
    whole = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])(image)
    assert np.abs(shown - np.asarray(whole)).max() <= 1
    Image.effect_noise((width, height), 90).resize((width * 10, height) if width > height else (1, 6000)).save(
        tmp_path / "thin.png"
    )
    code = (
        "import resource, sys\n"
        "from timestepper.data.decode import read_sample\n"
        "from timestepper.data.windows import View, Windows\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert read_sample(sys.argv[1], 0, Windows(View(224, 256))).shape == (224, 224, 3)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000)\n"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "thin.png")]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout == "True\n"


def random_cuts(size, count):
    """Noise, which shows every mistake, with windows of all kinds; the last ones are scaled along one axis alone."""
    chance = np.random.default_rng(0)
    for number in range(count):
        height, width = chance.integers(1, 90, 2).tolist()
        pixels = chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
        view = View(size, size + 3, random_part=bool(number % 2), flip=number % 3 > 0)
        yield pixels, Windows(view).of(width, height, int(chance.integers(2**63)))
    for height, width in ((size, 5), (size, 24), (size, 90), (5, size), (25, size), (90, size)):
        pixels = chance.integers(0, 256, (height, width, 3), dtype=np.uint8)
        yield pixels, Window(0, 0, width, height, size, size, 0, 0, False)


def check_many(device, cut_many):
    """All windows at once, in slots of another order; a slot that is not named stays as it is.

    Pillow may scale down before across, which rounds in another order; along one axis its pixels are met exactly.
    """
    cuts = list(random_cuts(19, 24))
    images = [torch.from_numpy(pixels).permute(2, 0, 1).contiguous().to(device) for pixels, _ in cuts]
    windows = [window for _, window in cuts]
    out = torch.full((31, 19, 19, 3), 77, dtype=torch.uint8, device=device)
    cut_many(images, windows, list(range(30, 0, -1)), out)
    pillows = np.stack([np.asarray(cut(Image.fromarray(pixels), window, 19)) for pixels, window in cuts])
    difference = (out[1:].flip(0).cpu().int() - torch.from_numpy(pillows).int()).abs()
    assert difference.max() <= 1
    assert not difference[24:].any()
    assert (out[0] == 77).all()


def test_many_images_at_once():
    check_many("cpu", cut_all)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_cuts_as_pillow_does():
    check_many("cuda", cut_all)


def test_the_kernel_in_the_interpreter_cuts_as_pillow_does():
    here = Path(__file__).parent
    run_interpreted(f"""
import sys
sys.path[:0] = [{str(here)!r}, {str(here.parents[1])!r}]
import test_data_windows
from timestepper.data.resample import launch
test_data_windows.check_many("cpu", launch)
""")
