"""What a step size of 0.01 does before any training: to gradients, as the paper says, and to sums in bf16."""

import pytest
import torch
from torch.nn import functional as F

from timestepper.models import CifarResNet


def residual_part(step):
    """By how much the gradient of a stage's first feature differs from that of its last, stage by stage.

    A ResNet-56 at its start, with sums as the paper's equation has them: no ReLU behind.
    """
    torch.manual_seed(0)
    net = CifarResNet(56)
    y = net.bn1(net.conv1(torch.randn(8, 3, 32, 32)))
    stages = []
    for stage in (net.layer1, net.layer2, net.layer3):
        features = []
        for block in stage:
            y = block.shortcut(y) + step * block.bn2(block.conv2(F.relu(block.bn1(block.conv1(y)))))
            y.retain_grad()
            features.append(y)
        stages.append(features)
    F.cross_entropy(net.linear(y.mean((2, 3))), torch.arange(8)).backward()
    return [float((found[0].grad - found[-1].grad).norm() / found[-1].grad.norm()) for found in stages]


def test_the_residual_s_part_of_the_gradient_vanishes_with_the_step_size():
    whole, small, smaller = (residual_part(step) for step in (1.0, 0.01, 0.001))
    assert min(whole) > 0.9
    assert max(small) < 0.1
    for part, tenth in zip(small, smaller, strict=True):
        assert tenth == pytest.approx(part / 10, rel=0.1)


def test_a_step_size_of_a_hundredth_loses_a_sixth_of_its_update_to_rounding_in_bf16():
    """Features and residuals of the same size; the root mean square of what is lost against that of the update."""
    generator = torch.Generator().manual_seed(0)
    feature, residual = (torch.randn(100_000, generator=generator).bfloat16() for _ in range(2))

    def lost(step):
        update = (step * residual.float()).bfloat16()
        found = (feature + update).float() - feature.float()
        return float((found - update.float()).norm() / update.float().norm())

    assert lost(0.01) == pytest.approx(0.166, abs=0.01)
    assert lost(0.5) < 0.005
