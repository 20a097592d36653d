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
