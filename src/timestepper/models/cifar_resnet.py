"""The CIFAR ResNet of He et al. (2016): 6n+2 layers, three stages of n basic blocks, parameter-free shortcuts.

Parameter names are the usual ones (``conv1``, ``layer1.0.conv1``, ``linear``), so published weights load.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions; where the size changes, the shortcut takes every second pixel and adds zero channels.

    Or it is a projection, a 1x1 convolution with batch norm.
    """

    def __init__(self, inputs: int, channels: int, stride: int, projection: bool = False):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.padding = channels - inputs
        self.downsample: nn.Module | None = None
        if projection and inputs != channels:
            conv = nn.Conv2d(inputs, channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + branch)

    def shortcut(self, x: Tensor) -> Tensor:
        if self.downsample is not None:
            return self.downsample(x)
        if self.stride == 1 and self.padding == 0:
            return x
        before = self.padding // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.padding - before))


class CifarResNet(nn.Module):
    """ResNet-``depth`` for small images; ``depth`` is 6n+2 (20, 32, 56, 110, ... 506, 1202).

    ``shortcut`` is ``zeros`` (as in the paper) or ``projection``.
    """

    def __init__(self, depth: int, num_classes: int = 10, in_chans: int = 3, width: int = 16, shortcut: str = "zeros"):
        blocks = blocks_per_stage(depth)
        if shortcut not in ("zeros", "projection"):
            raise ValueError(f"shortcut must be zeros or projection, not {shortcut!r}")
        super().__init__()
        block = partial(BasicBlock, projection=shortcut == "projection")
        self.conv1 = nn.Conv2d(in_chans, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = stage(block, width, width, blocks, stride=1)
        self.layer2 = stage(block, width, 2 * width, blocks, stride=2)
        self.layer3 = stage(block, 2 * width, 4 * width, blocks, stride=2)
        self.linear = nn.Linear(4 * width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def blocks_per_stage(depth: int) -> int:
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"a CIFAR ResNet has 6n+2 layers (8, 14, 20, 32, 56, 110, ...), not {depth}")
    return (depth - 2) // 6


def stage(block: Callable[..., nn.Module], inputs: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = block(inputs, channels, stride)
    return nn.Sequential(first, *(block(channels, channels, 1) for _ in range(blocks - 1)))
