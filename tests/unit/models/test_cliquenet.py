"""CliqueNet: the published sizes, and a block worked out filter by filter from the definition."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timestepper.models import CliqueNet
from timestepper.models.cliquenet import CliqueBlock


@pytest.mark.parametrize(
    ("growth", "layers", "millions"),
    [(36, 12, "0.94"), (64, 15, "4.49"), (80, 15, "6.94"), (80, 18, "10.14"), (12, 36, "1.05"), (24, 18, "0.99")],
)
def test_parameters_are_the_published_ones(growth, layers, millions):
    with torch.device("meta"):
        model = CliqueNet(growth, layers)
    assert f"{sum(parameter.numel() for parameter in model.parameters()) / 1e6:.2f}" == millions


@pytest.mark.parametrize("layers", [3, 10, 0])
def test_layers_that_do_not_split_over_three_blocks_are_refused(layers):
    with pytest.raises(ValueError, match=f"three blocks .* not {layers}"):
        CliqueNet(layers=layers)


def test_shapes_follow_the_arguments():
    model = CliqueNet(growth=4, layers=9, num_classes=7, in_chans=1)
    x = model.conv(torch.randn(2, 1, 16, 16))
    for block, transition, size in (("block1", "transition1", 8), ("block2", "transition2", 4)):
        x = model.get_submodule(transition)(model.get_submodule(block)(x))
        assert x.shape == (2, 12, size, size)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)


def filters(block, source: int, target: int) -> torch.Tensor:
    """W_ij for layers 1, 2, ...; source 0 is the block input."""
    layer = block[target - 1]
    if source == 0:
        return layer.from_input.weight
    others = [number for number in range(1, len(block) + 1) if number != target]
    return layer.from_layers.weight.chunk(len(others), 1)[others.index(source)]


def pre_activation(norm, features: list[torch.Tensor]) -> list[torch.Tensor]:
    sizes = [feature.shape[1] for feature in features]
    return list(F.relu(norm(torch.cat(features, 1))).split(sizes, 1))


def test_a_block_is_the_sum_over_filters_of_the_definition():
    torch.manual_seed(0)
    block = CliqueBlock(inputs=5, growth=3, layers=4).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    state = {0: torch.randn(2, 5, 6, 6, dtype=torch.float64)}
    for target in range(1, 5):
        sources = range(target)
        inputs = pre_activation(block[target - 1].norm1, [state[source] for source in sources])
        state[target] = sum(
            F.conv2d(x, filters(block, source, target), padding=1) for source, x in zip(sources, inputs, strict=True)
        )
    for target in range(1, 5):
        sources = [source for source in range(1, 5) if source != target]
        inputs = pre_activation(block[target - 1].norm2, [state[source] for source in sources])
        state[target] = sum(
            F.conv2d(x, filters(block, source, target), padding=1) for source, x in zip(sources, inputs, strict=True)
        )
    expected = torch.cat([state[target] for target in range(1, 5)], 1)
    torch.testing.assert_close(block(state[0]), expected, rtol=1e-12, atol=1e-12)


def test_the_classifier_sees_the_input_and_the_output_of_every_block():
    """Each pair is normalised, cut off at zero and averaged over the image; the three stand side by side."""
    model = CliqueNet(growth=4, layers=6).double().eval()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x1 = model.conv(images)
    y1 = model.block1(x1)
    x2 = model.transition1(y1)
    y2 = model.block2(x2)
    x3 = model.transition2(y2)
    y3 = model.block3(x3)
    pairs = ((model.norm1, x1, y1), (model.norm2, x2, y2), (model.norm3, x3, y3))
    pooled = [norm(torch.cat([x, y], 1)).clamp(min=0).mean((2, 3)) for norm, x, y in pairs]
    torch.testing.assert_close(model(images), model.linear(torch.cat(pooled, 1)))


def test_convolutions_start_as_he_et_al_say():
    conv = CliqueNet().block2[1].from_input
    assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.05)


def test_every_filter_is_trained():
    model = CliqueNet(growth=4, layers=6)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    untouched = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not untouched
