"""CliqueNet for small images (Yang et al., CVPR 2018), without bottleneck, compression and attentional transition.

In a block every layer feeds every other one. Stage I computes layer j from the block input and the layers before it;
Stage II updates it once more from the newest version of all other layers, with the same filters. Batch norm is
not shared between the two stages, because their inputs have different channels and statistics.
k=36, T=12, the network of the paper's Appendix C, has 935,994 parameters at 10 classes (published: 0.94 M).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.models.densenet import Transition

FIRST_CHANNELS = 64
BLOCKS = 3


class CliqueLayer(nn.Module):
    """Layer ``index`` of a block, with all filters that enter it.

    ``from_input`` holds W_0j. ``from_layers`` holds W_ij for every other layer i, side by side in the order of i, so
    the filters that Stage I needs are its first columns. Both make the layer's channels: one row per channel in each.
    """

    def __init__(self, inputs: int, growth: int, index: int, layers: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs + index * growth)
        self.norm2 = nn.BatchNorm2d((layers - 1) * growth)
        self.from_input = nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        self.from_layers = nn.Conv2d((layers - 1) * growth, growth, 3, padding=1, bias=False)

    def forward(self, others: list[Tensor], block_input: Tensor | None = None) -> Tensor:
        """Stage I where the block input is given (``others`` are the layers before it), else Stage II (all others)."""
        if block_input is None:
            return self.from_layers(F.relu(self.norm2(torch.cat(others, 1))))
        x = F.relu(self.norm1(torch.cat([block_input, *others], 1)))
        seen = x.shape[1] - block_input.shape[1]
        return F.conv2d(x, torch.cat([self.from_input.weight, self.from_layers.weight[:, :seen]], 1), padding=1)


class CliqueBlock(nn.ModuleList):
    """Layers that are all connected both ways; gives the Stage II features of all of them, concatenated."""

    def __init__(self, inputs: int, growth: int, layers: int):
        super().__init__(CliqueLayer(inputs, growth, index, layers) for index in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features: list[Tensor] = []
        for layer in self:
            features.append(layer(features, x))
        for index, layer in enumerate(self):
            features[index] = layer(features[:index] + features[index + 1 :])
        return torch.cat(features, 1)


class CliqueNet(nn.Module):
    """Three blocks of ``layers`` / 3 layers with ``growth`` channels each (the T and k of the CliqueNet paper).

    The classifier sees three scales: each block's input and Stage II output, normalised and pooled.
    """

    def __init__(self, growth: int = 36, layers: int = 12, num_classes: int = 10, in_chans: int = 3):
        if layers < 2 * BLOCKS or layers % BLOCKS:
            raise ValueError(
                f"CliqueNet splits its layers over three blocks of two or more (6, 9, 12, ...), not {layers}"
            )
        super().__init__()
        each = layers // BLOCKS
        outputs = each * growth
        self.conv = nn.Conv2d(in_chans, FIRST_CHANNELS, 3, padding=1, bias=False)
        self.block1 = CliqueBlock(FIRST_CHANNELS, growth, each)
        self.transition1 = Transition(outputs)
        self.block2 = CliqueBlock(outputs, growth, each)
        self.transition2 = Transition(outputs)
        self.block3 = CliqueBlock(outputs, growth, each)
        self.norm1 = nn.BatchNorm2d(FIRST_CHANNELS + outputs)
        self.norm2 = nn.BatchNorm2d(2 * outputs)
        self.norm3 = nn.BatchNorm2d(2 * outputs)
        self.linear = nn.Linear(FIRST_CHANNELS + 5 * outputs, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.conv(x)
        y1 = self.block1(x1)
        x2 = self.transition1(y1)
        y2 = self.block2(x2)
        x3 = self.transition2(y2)
        y3 = self.block3(x3)
        scales = [_pooled(self.norm1, x1, y1), _pooled(self.norm2, x2, y2), _pooled(self.norm3, x3, y3)]
        return self.linear(torch.cat(scales, 1))


def _pooled(norm: nn.Module, block_input: Tensor, features: Tensor) -> Tensor:
    return F.relu(norm(torch.cat([block_input, features], 1))).mean((2, 3))
