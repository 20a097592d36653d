"""Images in memory: the data set, and the loader that slices prepared chunks."""

import dataclasses

import pytest
import torch
from batches import equal, joined

from timestepper.data import AUGMENTS, ArrayImages, Augment, loader, open_dataset
from timestepper.data.augment import Normaliser, crop_and_flip, draw
from timestepper.data.loading import ResidentLoader
from timestepper.data.order import Plan, epoch_order
from timestepper.errors import DataError


@pytest.fixture(scope="module")
def digits():
    return open_dataset("digits")


def numbered(count=101):
    """Images whose every pixel and label tell which sample they are."""
    numbers = torch.arange(count)
    pixels = numbers.to(torch.uint8)[:, None, None, None].expand(count, 6, 6, 1).contiguous()
    return ArrayImages(pixels, numbers, classes=count, mean=(0.0,), std=(1 / 255,))


def batches(images, epoch=0, first_step=0, **options):
    options = {"batch_size": 20, "seed": 0, "training": True} | options
    return list(loader(images, **options).epoch(epoch, first_step))


def test_the_first_images():
    first = numbered().some(3)
    assert first.labels.tolist() == first.images[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert first.classes == 101


def test_what_a_loader_says_of_itself(digits):
    training = loader(digits.train, batch_size=100, seed=0, training=True, world=4, rank=1)
    assert (training.samples, training.steps, training.local_batch) == (1437, 14, 25)
    assert training.input_shape == (1, 8, 8)
    assert len(list(training.epoch(0))) == 14
    assert loader(digits.test, batch_size=100, seed=0, training=False).steps == 4


def test_images_and_labels_stay_together_in_the_order_of_the_epoch():
    for step, (images, labels) in enumerate(batches(numbered(), epoch=4, seed=9)):
        assert labels.tolist() == epoch_order(101, 9, 4)[20 * step : 20 * step + 20].tolist()
        assert torch.equal(images, labels.float()[:, None, None, None].expand(20, 1, 6, 6))
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64


def test_epochs_differ_and_repeat(digits):
    first = batches(digits.train, epoch=0, augment="shift")
    assert equal(first, batches(digits.train, epoch=0, augment="shift"))
    assert not equal(first, batches(digits.train, epoch=1, augment="shift"))
    assert not equal(first, batches(digits.train, epoch=0, augment="shift", seed=1))


def test_one_loader_gives_any_epoch_at_any_time(digits):
    again = loader(digits.train, batch_size=20, seed=0, training=True, augment="shift")
    list(again.epoch(5))
    next(again.epoch(1))
    assert equal(list(again.epoch(0)), batches(digits.train, augment="shift"))


@pytest.mark.parametrize("first_step", [0, 1, 63, 64, 65, 70, 71])
def test_starting_late_equals_skipping(digits, first_step):
    whole = batches(digits.train, augment="shift")
    assert len(whole) == 71
    assert equal(batches(digits.train, augment="shift", first_step=first_step), whole[first_step:])


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("training", [True, False])
def test_ranks_together_see_the_batches_of_one(digits, world, training):
    options = {"augment": "crop_flip", "training": training}
    whole = batches(digits.test, **options)
    shares = [batches(digits.test, rank=rank, world=world, **options) for rank in range(world)]
    assert equal(joined(shares), whole)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_the_chunk_changes_no_value(digits, chunk):
    plan = Plan(len(digits.train), 20, seed=0, training=True)
    other = ResidentLoader(digits.train, plan, AUGMENTS["shift"], torch.device("cpu"), chunk=chunk)
    assert equal(list(other.epoch(0)), batches(digits.train, augment="shift"))


def test_augmentation_belongs_to_the_sample_not_to_its_place():
    """Every sample is varied by its own draws of the epoch, wherever the order puts it."""
    images = dataclasses.replace(numbered(), images=torch.randint(256, (101, 6, 6, 1), dtype=torch.uint8))
    expected = crop_and_flip(images.images, draw(Augment(2, True), 101, seed=3, epoch=8), 2)
    expected = Normaliser(images.mean, images.std, torch.device("cpu"))(expected)
    for varied, labels in batches(images, epoch=8, seed=3, augment=Augment(2, True)):
        assert torch.equal(varied, expected[labels])


def test_evaluation_pads_with_labels_of_minus_one_and_does_not_augment():
    steps = batches(numbered(), training=False, augment="crop_flip")
    assert [len(labels) for _, labels in steps] == [20] * 6
    assert {len(images) for images, _ in steps} == {20}
    labels = torch.cat([labels for _, labels in steps])
    assert labels.tolist() == [*range(101), *[-1] * 19]
    images = torch.cat([images for images, _ in steps])[:101]
    assert torch.equal(images, torch.arange(101.0)[:, None, None, None].expand(101, 1, 6, 6))


def test_a_loader_leaves_the_global_generator_alone(digits):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    batches(digits.train, augment="crop_flip")
    assert torch.equal(before, torch.get_rng_state())


def test_loaders_share_one_copy_of_the_images(digits):
    moved = digits.train.to("cpu")
    loaders = [loader(moved, batch_size=20, seed=0, training=training) for training in (True, False)]
    assert {one.images.images.data_ptr() for one in loaders} == {moved.images.data_ptr()}


def test_channels_last_changes_the_layout_and_no_value(digits):
    plain = batches(digits.train, augment="shift")
    last = batches(digits.train, augment="shift", memory_format=torch.channels_last)
    assert equal(plain, last)
    assert all(images.is_contiguous(memory_format=torch.channels_last) for images, _ in last)


def test_impossible_images_are_refused():
    good = numbered(4)
    for change, message in (
        ({"labels": torch.tensor([0, 1, 2, 4])}, "labels run from 0 to 4, but 4 classes allow only 0 to 3"),
        ({"labels": torch.tensor([0, 1, 2, -1])}, "labels run from -1 to 2"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "4 images but 3 labels"),
        ({"labels": torch.zeros(4)}, "labels must be int64"),
        ({"images": good.images.float()}, "images must be uint8 of 4 dimensions, got torch.float32"),
        ({"mean": (0.5, 0.5, 0.5)}, "1 channels, but 3 means"),
        ({"std": (0.5, 0.5)}, "1 channels, but 1 means and 2 standard deviations"),
    ):
        with pytest.raises(DataError, match=message):
            dataclasses.replace(good, **change)
    with pytest.raises(DataError, match="'resized_crop' is for image folders"):
        batches(good, batch_size=2, augment="resized_crop")
    with pytest.raises(DataError, match="batch of 20 cannot be shared equally by 3"):
        batches(numbered(), world=3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_bits_of_the_cpu(digits):
    on_gpu = batches(digits.train, augment="crop_flip", device="cuda")
    assert all(images.is_cuda and labels.is_cuda for images, labels in on_gpu)
    on_gpu = [(images.cpu(), labels.cpu()) for images, labels in on_gpu]
    assert equal(on_gpu, batches(digits.train, augment="crop_flip"))
