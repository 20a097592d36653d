"""DenseNet: the published sizes, and features that only ever grow."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timestepper.models import DenseNet


@pytest.mark.parametrize(
    ("depth", "growth", "millions"),
    [(40, 12, "1.02"), (100, 12, "6.98"), (100, 24, "27.25"), (22, 24, "0.99"), (16, 36, "0.96")],
)
def test_parameters_are_the_published_ones(depth, growth, millions):
    """The first three from Huang et al. (1.0, 7.0, 27.2 M), the last two from the CliqueNet authors' comparison."""
    with torch.device("meta"):
        model = DenseNet(depth, growth)
    assert f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.2f}" == millions


def test_forty_layers_have_weights():
    model = DenseNet(40, 12)
    weighted = [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    assert len(weighted) == 40


@pytest.mark.parametrize("depth", [4, 39, 41, -2])
def test_other_depths_are_refused(depth):
    with pytest.raises(ValueError, match=rf"3n\+4 layers .* not {depth}"):
        DenseNet(depth)


def test_shapes_follow_the_arguments():
    model = DenseNet(10, growth=4, num_classes=7, in_chans=1)
    x = model.conv(torch.randn(2, 1, 16, 16))
    for block, transition, channels, size in (("block1", "transition1", 24, 8), ("block2", "transition2", 32, 4)):
        x = model.get_submodule(transition)(model.get_submodule(block)(x))
        assert x.shape == (2, channels, size, size)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)


def test_a_layer_appends_its_feature_behind_the_old_ones():
    model = DenseNet(10, growth=4).eval()
    x = torch.randn(2, 16, 8, 8)
    first, second = model.block1
    after_first = torch.cat([x, first.conv(F.relu(first.norm(x)))], 1)
    expected = torch.cat([after_first, second.conv(F.relu(second.norm(after_first)))], 1)
    assert torch.equal(model.block1(x), expected)


def test_the_network_is_the_published_one_layer_by_layer():
    """Norm and activation come first everywhere; a transition averages, and so does the end."""
    model = DenseNet(10, growth=4).double().eval()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = model.block1(model.conv(images))
    for transition, block in ((model.transition1, model.block2), (model.transition2, model.block3)):
        mixed = transition.conv(transition.norm(x).clamp(min=0))
        x = block((mixed[..., ::2, ::2] + mixed[..., 1::2, ::2] + mixed[..., ::2, 1::2] + mixed[..., 1::2, 1::2]) / 4)
    torch.testing.assert_close(model(images), model.linear(model.norm(x).clamp(min=0).mean((2, 3))))


def test_convolutions_start_as_he_et_al_say():
    conv = DenseNet(40).transition2.conv
    assert conv.weight.std().item() == pytest.approx((2 / conv.out_channels) ** 0.5, rel=0.05)
    conv = DenseNet(40).block3[11].conv
    assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.05)
