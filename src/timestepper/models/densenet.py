"""The plain CIFAR DenseNet of Huang et al. (2017): 3n+4 layers, no bottleneck, no compression.

DenseNet-40-12, the network of the paper's Appendix C, has 1,019,722 parameters at 10 classes (published: 1.0 M).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FIRST_CHANNELS = 16


class DenseLayer(nn.Module):
    """One new feature of ``growth`` channels, made from all older ones and concatenated behind them."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x)))], 1)


class Transition(nn.Module):
    """Between two blocks: mix the channels and halve the size."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """Three dense blocks of n layers for small images; ``depth`` is 3n+4 (22, 40, 100, ...)."""

    def __init__(self, depth: int = 40, growth: int = 12, num_classes: int = 10, in_chans: int = 3):
        if depth < 7 or (depth - 4) % 3:
            raise ValueError(f"a CIFAR DenseNet has 3n+4 layers (7, 10, ... 22, 40, 100, ...), not {depth}")
        super().__init__()
        layers = (depth - 4) // 3
        after1, after2, after3 = (FIRST_CHANNELS + layers * growth * blocks for blocks in (1, 2, 3))
        self.conv = nn.Conv2d(in_chans, FIRST_CHANNELS, 3, padding=1, bias=False)
        self.block1 = _block(FIRST_CHANNELS, growth, layers)
        self.transition1 = Transition(after1)
        self.block2 = _block(after1, growth, layers)
        self.transition2 = Transition(after2)
        self.block3 = _block(after2, growth, layers)
        self.norm = nn.BatchNorm2d(after3)
        self.linear = nn.Linear(after3, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.transition1(self.block1(self.conv(x)))
        x = self.block3(self.transition2(self.block2(x)))
        return self.linear(F.relu(self.norm(x)).mean((2, 3)))


def _block(inputs: int, growth: int, layers: int) -> nn.Sequential:
    return nn.Sequential(*(DenseLayer(inputs + index * growth, growth) for index in range(layers)))
