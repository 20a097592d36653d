"""A CIFAR ResNet of 6n+2 layers without norms, where nothing takes the size of a branch back.

ReLUs stand in front of the convolutions and none behind the sum, and a 1x1 convolution is the shortcut where the size
changes: with channels of zeros, a branch that starts at zero would leave them at zero for ever.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.models.cifar_resnet import blocks_per_stage, stage


class NormFreeBlock(nn.Module):
    """Two 3x3 convolutions with biases."""

    def __init__(self, inputs: int, channels: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.conv2(F.relu(self.conv1(F.relu(x))))


class NormFreeResNet(nn.Module):
    """``start`` is ``he``, where every branch is as large as the stream that it reads, or ``fixup``.

    Fixup (Zhang et al., 2019) starts the last convolution of every branch at 0 and makes the first smaller by the root
    of the number of blocks. With ``he`` the stream doubles its variance in every block: give it step sizes.
    """

    def __init__(self, depth: int, num_classes: int = 10, in_chans: int = 3, width: int = 16, start: str = "he"):
        blocks = blocks_per_stage(depth)
        if start not in ("he", "fixup"):
            raise ValueError(f"start must be he or fixup, not {start!r}")
        super().__init__()
        self.conv1 = nn.Conv2d(in_chans, width, 3, padding=1)
        self.layer1 = stage(NormFreeBlock, width, width, blocks, stride=1)
        self.layer2 = stage(NormFreeBlock, width, 2 * width, blocks, stride=2)
        self.layer3 = stage(NormFreeBlock, 2 * width, 4 * width, blocks, stride=2)
        self.linear = nn.Linear(4 * width, num_classes)
        for name, layer in self.named_modules():
            if isinstance(layer, nn.Conv2d):
                behind_relu = "." in name and "shortcut" not in name
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu" if behind_relu else "linear")
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
        if start == "fixup":
            for block in (part for part in self.modules() if isinstance(part, NormFreeBlock)):
                nn.init.zeros_(block.conv2.weight)
                block.conv1.weight.data /= (3 * blocks) ** 0.5
            nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(F.relu(x), 1), 1))
