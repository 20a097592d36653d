"""Why blocks that start at 0 end badly in a CIFAR ResNet: the channels of its zero-padded shortcuts never wake up.

Behind the sum stands a ReLU; where its input is exactly 0, its gradient is 0 as well, and that of the norm too.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from timestepper.models import CifarResNet


def dead_channels(start, shortcut="zeros"):
    """Channels that are 0 for every image, in each block of each stage, after 30 updates."""
    torch.manual_seed(0)
    net = CifarResNet(20, shortcut=shortcut)
    blocks = [block for stage in (net.layer1, net.layer2, net.layer3) for block in stage]
    for block in blocks:
        nn.init.constant_(block.bn2.weight, start)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    images, labels = torch.randn(32, 3, 16, 16), torch.arange(32) % 10
    for _ in range(30):
        optimiser.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimiser.step()
    found = []
    for block in blocks:
        block.register_forward_hook(lambda _, __, y: found.append(int((y.amax((0, 2, 3)) == 0).sum())))
    net(images)
    return found


def test_a_start_at_0_leaves_half_and_then_three_quarters_of_the_channels_dead():
    assert dead_channels(0.0) == [0] * 3 + [16] * 3 + [48] * 3


@pytest.mark.parametrize("start", [0.01, 0.5])
def test_any_other_start_wakes_nearly_all(start):
    assert sum(dead_channels(start)) < 20


def test_projections_keep_them_alive():
    assert sum(dead_channels(0.0, "projection")) < 20
