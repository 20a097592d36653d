from itertools import pairwise

import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn import functional as F

import timestepper
from timestepper.errors import StabilityError
from timestepper.stability import Pixels, robustness
from timestepper.stability.attacks import fgsm, pgd
from timestepper.stability.corruptions import NAMES, corrupt

COUNT = 100


def close(score, other):
    return score.samples == other.samples and score.error == other.error and score.loss == pytest.approx(other.loss)


def test_noise_figures_do_not_depend_on_the_batch_size(plain, digits):
    tables = [
        robustness.noise(plain, digits.batches(size, COUNT), (0.0, 0.5), draws_each=2) for size in (1, 7, 64, 100)
    ]
    for table in tables[1:]:
        for level, scores in table.items():
            assert all(close(a, b) for a, b in zip(scores, tables[0][level], strict=True))
    assert {score.samples for scores in tables[0].values() for score in scores} == {COUNT}
    assert [len(scores) for scores in tables[0].values()] == [2, 2]


def test_noise_is_a_function_of_seed_draw_and_sample(plain, digits):
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = torch.nn.Linear(1, 1)

        def forward(self, images):
            seen.append(images)
            return images.flatten(1)[:, :10]

    def run(seed):
        seen.clear()
        robustness.noise(Spy(), [(torch.zeros(4, 1, 8, 8), torch.zeros(4).long())], (0.0, 2.0), draws_each=2, seed=seed)
        return seen[1:]  # the first is a look at whether it can run at all

    first, again, other = run(0), run(0), run(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    clean, noisy, second_draw = first  # without noise a second draw would show the same images
    assert not clean.any()
    assert not torch.equal(noisy, second_draw)
    assert not torch.equal(noisy, other[1])
    assert not torch.equal(noisy[0], noisy[1])
    wide = torch.cat([*first[1:], *other[1:]]).flatten()
    assert wide.std().item() == pytest.approx(2.0, rel=0.1)
    assert wide.mean().item() == pytest.approx(0.0, abs=0.3)


def test_scores_are_right(plain, digits):
    images, labels = (half[:COUNT] for half in digits.test)
    score = robustness.noise(plain, digits.batches(30, COUNT), (0.0,), draws_each=1)[0.0][0]
    with torch.no_grad():
        logits = plain(images)
    assert score.error == pytest.approx((logits.argmax(1) != labels).float().mean().item())
    assert score.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


def test_a_trained_network_suffers_in_the_order_of_the_strength(plain, digits):
    noise = robustness.noise(plain, digits.batches(360), (0.0, 0.5, 2.0), draws_each=2)
    clean, some, much = (scores[0].error for scores in noise.values())
    assert clean < 0.1
    assert clean <= some < much
    attacked = robustness.attacks(plain, digits.batches(100, COUNT), digits.scale, (0.05, 0.2), steps=5)
    assert attacked["fgsm"][0.05].loss < attacked["fgsm"][0.2].loss
    assert attacked["pgd"][0.2].loss > attacked["fgsm"][0.2].loss  # many steps find more than one
    assert attacked["pgd"][0.2].error > clean + 0.3


def test_plain_attached_and_folded_networks_give_one_table(stepped, digits):
    folded = timestepper.fold(stepped)
    for figures in (
        lambda net: robustness.noise(net, digits.batches(50, 50), (0.3,), draws_each=1)[0.3],
        lambda net: [robustness.attacks(net, digits.batches(50, 50), digits.scale, (0.1,), steps=2)["pgd"][0.1]],
        lambda net: robustness.corrupted(net, digits.batches(50, 50), digits.scale, ("contrast",))["contrast"],
    ):
        assert figures(stepped) == figures(folded)


@pytest.mark.parametrize("attack", ["fgsm", "pgd"])
def test_attacks_stay_within_epsilon_and_inside_the_pixels(plain, digits, attack):
    images, labels = digits.test[0][:16], digits.test[1][:16]
    if attack == "fgsm":
        found = fgsm(plain, images, labels, 0.1, digits.scale)
    else:
        found = pgd(plain, images, labels, 0.1, digits.scale, indices=range(16), steps=7)
    before, after = digits.scale.decode(images), digits.scale.decode(found)
    assert (after - before).abs().max().item() == pytest.approx(0.1, abs=1e-5)
    assert after.min() >= -1e-6
    assert after.max() <= 1 + 1e-6
    with torch.no_grad():
        assert F.cross_entropy(plain(found), labels) > F.cross_entropy(plain(images), labels)


def test_an_attack_on_a_sample_does_not_depend_on_its_batch(plain, digits):
    images, labels = digits.test[0][:6], digits.test[1][:6]
    together = pgd(plain, images, labels, 0.1, digits.scale, indices=range(6), steps=3)
    alone = pgd(plain, images[4:5], labels[4:5], 0.1, digits.scale, indices=[4], steps=3)
    torch.testing.assert_close(together[4:5], alone, atol=1e-5, rtol=0)


def test_pgd_begins_anywhere_within_epsilon_by_seed_and_sample(plain, digits):
    images, labels = torch.full((2, 1, 8, 8), 0.5), torch.zeros(2).long()
    scale = Pixels((0.0,), (1.0,))

    def start(seed, indices=(0, 1)):
        return (pgd(plain, images, labels, 0.1, scale, indices=indices, steps=0, seed=seed) - 0.5) / 0.1

    assert start(0).min() < -0.8
    assert start(0).max() > 0.8
    assert torch.equal(start(0), start(0))
    assert not torch.equal(start(0), start(1))
    assert torch.equal(start(0)[1], start(0, (1, 2))[0])


@pytest.fixture(scope="module")
def photo():
    """Smooth colours, 3 x 96 x 96 pixels, and a coarse one of 24."""
    generator = torch.Generator().manual_seed(0)
    return F.interpolate(torch.rand(2, 3, 6, 6, generator=generator), size=(96, 96), mode="bicubic").clamp(0, 1)


@pytest.mark.parametrize("size", [24, 96])
@pytest.mark.parametrize("name", NAMES)
def test_corruptions_grow_with_severity_and_stay_in_range(photo, name, size):
    pixels = F.interpolate(photo, size=(size, size), mode="area")
    changed = [corrupt(pixels, name, severity, [0, 1]) for severity in (1, 2, 3, 4, 5)]
    distances = [(image - pixels).pow(2).mean().sqrt().item() for image in changed]
    assert distances[0] > 0
    assert all(a < 1.05 * b for a, b in pairwise(distances)), distances  # JPEG is not strictly monotone
    assert distances[-1] > 1.3 * distances[0]
    assert all(image.shape == pixels.shape and image.min() >= 0 and image.max() <= 1 for image in changed)


@pytest.mark.parametrize("name", NAMES)
def test_a_corruption_of_a_sample_depends_on_its_index_alone(photo, name):
    together = corrupt(photo, name, 3, [10, 11])
    alone = corrupt(photo[1:], name, 3, [11])
    torch.testing.assert_close(together[1:], alone)
    if "noise" in name:
        assert not torch.equal(alone, corrupt(photo[1:], name, 3, [12]))
        assert not torch.equal(alone, corrupt(photo[1:], name, 3, [11], seed=1))


def test_corruptions_do_what_they_say(photo):
    flat = torch.full((1, 3, 40, 40), 0.5)
    torch.testing.assert_close(corrupt(flat, "blur", 5, [0]), flat)
    shot = corrupt(flat, "shot_noise", 5, [0])
    assert shot.mean().item() == pytest.approx(0.5, abs=0.02)
    assert shot.var().item() == pytest.approx(0.5 / 50, rel=0.2)  # a Poisson count has its mean as variance
    coloured = torch.tensor([0.2, 0.4, 0.1]).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
    brighter = corrupt(coloured, "brightness", 4, [0])[0, :, 0, 0]
    assert brighter.tolist() == pytest.approx([0.3, 0.6, 0.15])  # value 0.4 to 0.6, hue and saturation kept


def test_strengths_are_those_of_cifar_c_up_to_64_pixels_and_of_imagenet_c_above():
    for size, left, added in (
        (64, (0.75, 0.5, 0.4, 0.3, 0.15), (0.05, 0.1, 0.15, 0.2, 0.3)),
        (65, (0.4, 0.3, 0.2, 0.1, 0.05), (0.1, 0.2, 0.3, 0.4, 0.5)),
    ):
        pixels = torch.full((1, 1, 2, size), 0.5)
        pixels[:, :, 0], pixels[:, :, 1] = 0.4, 0.6
        for severity in (1, 2, 3, 4, 5):
            contrast = corrupt(pixels, "contrast", severity, [0])
            assert (contrast.max() - contrast.min()).item() == pytest.approx(0.2 * left[severity - 1], abs=1e-6)
            brighter = corrupt(pixels, "brightness", severity, [0])
            assert brighter.min().item() == pytest.approx(0.4 + added[severity - 1], abs=1e-6)


def test_blur_is_gaussian(photo):
    pixels = F.interpolate(photo, size=(24, 24), mode="area")[0, 0]
    expected = gaussian_filter(pixels.numpy(), 1.0, mode="nearest", truncate=4.0)
    assert corrupt(pixels[None, None], "blur", 5, [0])[0, 0].numpy() == pytest.approx(expected, abs=1e-5)


def test_black_is_brightened_to_grey_and_each_colour_has_a_contrast_of_its_own():
    pixels = torch.zeros(1, 3, 4, 4)
    torch.testing.assert_close(corrupt(pixels, "brightness", 5, [0]), torch.full_like(pixels, 0.3))
    pixels[:, 0] = 1.0  # each channel is flat, so there is no contrast to lose
    torch.testing.assert_close(corrupt(pixels, "contrast", 5, [0]), pixels)


def test_impulses_are_as_often_white_as_black():
    flat = torch.full((1, 3, 60, 60), 0.5)
    impulses = corrupt(flat, "impulse_noise", 5, [0])
    assert set(impulses.unique().tolist()) == {0.0, 0.5, 1.0}
    white, black = ((impulses == value).float().mean().item() for value in (1.0, 0.0))
    assert white == pytest.approx(0.035, abs=0.008)
    assert black == pytest.approx(0.035, abs=0.008)


def test_pixels_that_rounding_left_below_zero_are_corrupted_too(plain, digits):
    black = digits.scale.encode(torch.zeros(2, 1, 8, 8)) - 1e-5
    table = robustness.corrupted(plain, [(black, torch.tensor([0, 1]))], digits.scale, ("shot_noise",))
    assert table["shot_noise"][0].samples == 2


def test_corruptions_run_over_a_data_set(plain, digits):
    table = robustness.corrupted(plain, digits.batches(64, COUNT), digits.scale)
    assert set(table) == set(NAMES)
    assert all(len(scores) == 5 and scores[0].samples == COUNT for scores in table.values())


def test_figures_are_in_whole_float32_inside_a_run_that_is_not(plain, digits):
    def figures():
        return robustness.attacks(plain, digits.batches(20, 20), digits.scale, (0.1,), steps=2)

    expected = figures()
    with torch.autocast("cpu", torch.bfloat16):
        assert figures() == expected


def test_mistakes_are_said_in_one_line(plain, digits):
    with pytest.raises(StabilityError, match="no images"):
        robustness.noise(plain, [])
    coloured = [(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))]
    with pytest.raises(StabilityError, match=r"CifarResNet cannot run on inputs of shape \(1, 3, 8, 8\)"):
        robustness.noise(plain, coloured)
    with pytest.raises(StabilityError, match="NaN or infinity on these inputs"):
        robustness.noise(plain, [(torch.full((2, 1, 8, 8), float("nan")), torch.tensor([0, 1]))])
    with pytest.raises(StabilityError, match="no image has a label"):
        robustness.noise(plain, [(torch.rand(2, 1, 8, 8), torch.tensor([-1, -1]))])
    with pytest.raises(StabilityError, match="no images in this batch"):
        robustness.noise(plain, [(torch.rand(0, 1, 8, 8), torch.tensor([], dtype=torch.long))])
    with pytest.raises(StabilityError, match="1 channels, but mean and std are given for 3"):
        robustness.attacks(plain, digits.batches(10, 10), Pixels((0.5,) * 3, (0.2,) * 3))
    with pytest.raises(StabilityError, match="unknown corruption 'snow'"):
        corrupt(torch.rand(1, 3, 8, 8), "snow", 1, [0])
    with pytest.raises(StabilityError, match="1 or 3 channels"):
        corrupt(torch.rand(1, 2, 8, 8), "jpeg", 1, [0])
