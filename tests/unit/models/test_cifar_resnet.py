"""CIFAR ResNet: the published sizes, and the key names that published weights carry."""

import pytest
import torch
from torch import nn

from timestepper.models import CifarResNet


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("depth", "millions"),
    [(20, "0.27"), (32, "0.46"), (44, "0.66"), (56, "0.85"), (110, "1.73"), (1202, "19.42")],
)
def test_parameters_are_the_published_ones(depth, millions):
    with torch.device("meta"):
        assert f"{parameters(CifarResNet(depth)) / 1e6:.2f}" == millions


def test_depth_506_builds_with_84_blocks_a_stage():
    with torch.device("meta"):
        model = CifarResNet(506)
    assert [len(stage) for stage in (model.layer1, model.layer2, model.layer3)] == [84, 84, 84]
    assert parameters(model) == 8_144_218


@pytest.mark.parametrize("depth", [2, 18, 21, 51, -4])
def test_other_depths_are_refused(depth):
    with pytest.raises(ValueError, match=rf"6n\+2 layers .* not {depth}"):
        CifarResNet(depth)


def test_shapes_follow_the_arguments():
    model = CifarResNet(8, num_classes=7, in_chans=1, width=4)
    features = model.layer3(model.layer2(model.layer1(model.conv1(torch.randn(2, 1, 16, 16)))))
    assert features.shape == (2, 16, 4, 4)
    assert model(torch.randn(2, 1, 16, 16)).shape == (2, 7)


def test_shortcut_takes_every_second_pixel_and_pads_channels_on_both_sides():
    block = CifarResNet(8, width=4).layer2[0]
    x = torch.randn(2, 4, 6, 6)
    shortcut = block.shortcut(x)
    assert torch.equal(shortcut[:, 2:6], x[:, :, ::2, ::2])
    assert shortcut[:, :2].abs().max() == 0
    assert shortcut[:, 6:].abs().max() == 0


def test_the_network_is_the_published_one_layer_by_layer():
    """Activation behind the first norm, inside each branch and behind each sum; then the mean over the image."""
    model = CifarResNet(14, width=4).double().eval()
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias)
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    x = model.bn1(model.conv1(images)).clamp(min=0)
    for stage in (model.layer1, model.layer2, model.layer3):
        for block in stage:
            inside = block.bn1(block.conv1(x)).clamp(min=0)
            x = (block.shortcut(x) + block.bn2(block.conv2(inside))).clamp(min=0)
    torch.testing.assert_close(model(images), model.linear(x.mean((2, 3))))


def test_convolutions_start_as_he_et_al_say():
    """Normal, with a variance of 2 over the outputs that each input reaches."""
    for conv in (CifarResNet(8).layer3[0].conv1, CifarResNet(8).layer1[0].conv2):
        assert conv.weight.std().item() == pytest.approx((2 / (9 * conv.out_channels)) ** 0.5, rel=0.05)


def norm_keys(name: str, channels: int) -> dict[str, torch.Tensor]:
    keys = {f"{name}.{kind}": torch.rand(channels) for kind in ("weight", "bias", "running_mean", "running_var")}
    return keys | {f"{name}.num_batches_tracked": torch.tensor(7)}


def published_resnet20() -> dict[str, torch.Tensor]:
    """What the usual CIFAR ResNet-20 files hold, written out by name and shape."""
    state = {"conv1.weight": torch.randn(16, 3, 3, 3)} | norm_keys("bn1", 16)
    for stage, channels in ((1, 16), (2, 32), (3, 64)):
        for block in range(3):
            inputs = channels // 2 if block == 0 and stage > 1 else channels
            name = f"layer{stage}.{block}"
            state[f"{name}.conv1.weight"] = torch.randn(channels, inputs, 3, 3)
            state |= norm_keys(f"{name}.bn1", channels)
            state[f"{name}.conv2.weight"] = torch.randn(channels, channels, 3, 3)
            state |= norm_keys(f"{name}.bn2", channels)
    return state | {"linear.weight": torch.randn(10, 64), "linear.bias": torch.randn(10)}


def test_a_published_state_dict_loads_strictly():
    published = published_resnet20()
    model = CifarResNet(20)
    model.load_state_dict(published, strict=True)
    assert model.state_dict().keys() == published.keys()
    assert torch.equal(model.layer3[2].conv2.weight, published["layer3.2.conv2.weight"])
