"""A ResNet without norms: what it starts as, and that no channel is dead."""

import pytest
import torch
from torch import nn

from timestepper import attach
from timestepper.models import CifarResNet, NormFreeResNet

IMAGES = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_it_has_the_convolutions_of_the_resnet_and_no_norm():
    ours, theirs = NormFreeResNet(20), CifarResNet(20)

    def convs(net):
        layers = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d)}
        return {name: layer.weight.shape for name, layer in layers.items() if "shortcut" not in name}

    assert convs(ours) == convs(theirs)
    assert not any(isinstance(layer, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm) for layer in ours.modules())


def test_he_s_start_doubles_the_variance_in_every_block_and_fixup_s_keeps_it():
    for start, factor in (("he", 2.0), ("fixup", 1.0)):
        torch.manual_seed(0)
        net = NormFreeResNet(56, start=start)
        with torch.no_grad():
            first = net.conv1(IMAGES)
            grown = (net.layer1(first).square().mean() / first.square().mean()).item() ** (1 / 9)
        assert grown == pytest.approx(factor, rel=0.3)


@pytest.mark.parametrize(("start", "controller"), [("fixup", None), ("he", "scalar(0)"), ("he", "gain")])
def test_no_channel_is_dead_after_a_few_updates(start, controller):
    torch.manual_seed(0)
    net = NormFreeResNet(8, start=start)
    net = attach(net, controller) if controller else net
    optimiser = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for _ in range(6):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(IMAGES), torch.arange(16) % 10).backward()
        optimiser.step()
    optimiser.zero_grad()
    nn.functional.cross_entropy(net(IMAGES), torch.arange(16) % 10).backward()
    for stage in (net.layer1, net.layer2, net.layer3):
        for block in stage:
            assert block.conv2.weight.grad.flatten(1).norm(dim=1).min() > 0


@pytest.mark.parametrize(("depth", "options"), [(9, {}), (20, {"start": "zero"})])
def test_mistakes_are_named(depth, options):
    with pytest.raises(ValueError, match=r"6n\+2 layers|he or fixup"):
        NormFreeResNet(depth, **options)
