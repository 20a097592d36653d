"""The vectorised augmentation against torchvision, one image at a time."""

import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import functional as tv

from timestepper.data.augment import AUGMENTS, Augment, Normaliser, crop_and_flip, draw, resolve
from timestepper.errors import DataError, UnknownNameError

MEAN, STD = (0.49, 0.48, 0.44), (0.24, 0.25, 0.26)


def random_images(count=64, height=12, width=10, channels=3):
    return torch.randint(256, (count, height, width, channels), dtype=torch.uint8, generator=torch.Generator())


@pytest.mark.parametrize("augment", [AUGMENTS["crop_flip"], AUGMENTS["shift"], Augment(pad=0, flip=True)])
def test_every_image_is_what_torchvision_makes_of_it(augment):
    images = random_images()
    draws = draw(augment, len(images), seed=1, epoch=2)
    cropped = crop_and_flip(images, draws, augment.pad)
    normalised = Normaliser(MEAN, STD, torch.device("cpu"))(cropped)
    assert normalised.shape == (64, 3, 12, 10)
    assert normalised.dtype == torch.float32
    assert normalised.is_contiguous()
    for number, (image, (top, left, mirrored)) in enumerate(zip(images, draws.T.tolist(), strict=True)):
        expected = tv.pad(Image.fromarray(image.numpy()), [augment.pad] * 4, fill=0)
        expected = tv.crop(expected, top, left, 12, 10)
        expected = tv.hflip(expected) if mirrored else expected
        pixels = tv.pil_to_tensor(expected)
        assert torch.equal(cropped[number].permute(2, 0, 1), pixels)
        reference = tv.normalize(tv.to_dtype(pixels, torch.float32, scale=True), MEAN, STD)
        torch.testing.assert_close(normalised[number], reference, atol=1e-6, rtol=1e-6)


def test_draws_use_the_whole_range_evenly():
    top, left, mirrored = draw(AUGMENTS["crop_flip"], 90_000, seed=0, epoch=0)
    for offsets in (top, left):
        counts = offsets.bincount(minlength=9)
        assert len(counts) == 9
        assert ((counts - 10_000).abs() < 500).all()
    assert abs(float(mirrored.float().mean()) - 0.5) < 0.01
    assert abs(float(torch.corrcoef(torch.stack([top, left]).float())[0, 1])) < 0.02


def test_draws_depend_on_seed_and_epoch_and_on_nothing_else():
    def numbers(seed, epoch):
        return draw(AUGMENTS["crop_flip"], 500, seed, epoch)

    torch.manual_seed(0)
    first = numbers(1, 2)
    state = torch.get_rng_state()
    assert torch.equal(first, numbers(1, 2))
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, numbers(1, 3))
    assert not torch.equal(first, numbers(2, 2))
    assert not torch.equal(numbers(0, 1), numbers(1, 0))


def test_the_draws_of_a_seed_are_pinned():
    """A change would silently make every resumed run another run."""
    draws = draw(AUGMENTS["crop_flip"], 6, seed=0, epoch=0)
    assert draws.tolist() == [[1, 4, 0, 3, 7, 5], [8, 8, 6, 1, 7, 6], [0, 1, 1, 1, 1, 0]]


def test_no_flip_means_none_and_no_pad_means_no_shift():
    assert not draw(AUGMENTS["shift"], 500, 0, 0)[2].any()
    assert not draw(Augment(pad=0, flip=True), 500, 0, 0)[:2].any()


def test_names_and_impossible_augmentations():
    assert resolve("crop_flip") == Augment(pad=4, flip=True)
    assert resolve("shift") == Augment(pad=1)
    assert resolve("none") == Augment()
    assert resolve(Augment(pad=2)) == Augment(pad=2)
    with pytest.raises(UnknownNameError, match="'mixup'; there are none, shift, crop_flip, resized_crop"):
        resolve("mixup")
    with pytest.raises(DataError, match="pad must not be negative"):
        Augment(pad=-1)
    with pytest.raises(DataError, match="resized_crop"):
        Augment(pad=1, resized_crop=True)
