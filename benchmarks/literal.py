"""The paper word for word: step sizes multiply features, and the controller runs block by block inside the forward.

This is what one writes by hand from the text, network by network. It shares nothing with timestepper's own method
(equations, controllers, re-parameterisation, adapters), so the tests use it as the oracle and the benchmarks as the
peer. ``make_literal(model, "lstm")`` changes a network in place; its keys stay, each stage gains a ``controller``.
"""

from collections.abc import Iterator

import torch
from timm.models import resnet as timm_resnet
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import resnet as torchvision_resnet

from timestepper.models import cifar_resnet
from timestepper.models.cliquenet import CliqueBlock, CliqueLayer
from timestepper.models.densenet import DenseLayer

# -- the controllers: step d gets the averaged weights of layer d and the memory of the steps before it --------------


class LSTMController(nn.Module):
    """Eq. 10 to 12, all parameters shared by the steps of a stage."""

    def __init__(self, described: int, channels: int, reduction: int, steps: int):
        super().__init__()
        self.hidden = hidden = max(1, channels // reduction)
        self.W_in = nn.Linear(described, hidden)
        self.W_i = nn.Linear(2 * hidden, hidden)
        self.W_f = nn.Linear(2 * hidden, hidden)
        self.W_g = nn.Linear(2 * hidden, hidden)
        self.W_o = nn.Linear(2 * hidden, hidden)
        self.W_out = nn.Linear(hidden, channels)

    def step(self, d: int, w_bar: Tensor, memory: tuple[Tensor, Tensor] | None):
        x = torch.relu(self.W_in(w_bar))
        h, c = memory or (x.new_zeros(self.hidden), x.new_zeros(self.hidden))
        hx = torch.cat([h, x])
        i = torch.sigmoid(self.W_i(hx))
        f = torch.sigmoid(self.W_f(hx))
        g = torch.tanh(self.W_g(hx))
        o = torch.sigmoid(self.W_o(hx))
        c = f * c + i * g
        h = o * torch.tanh(c)
        return torch.sigmoid(self.W_out(h)), (h, c)


class TwoFCController(nn.Module):
    """TSC_2fc: the input and the output transformation without the LSTM, not shared between steps."""

    def __init__(self, described: int, channels: int, reduction: int, steps: int):
        super().__init__()
        hidden = max(1, channels // reduction)
        self.W_in = nn.ModuleList(nn.Linear(described, hidden) for _ in range(steps))
        self.W_out = nn.ModuleList(nn.Linear(hidden, channels) for _ in range(steps))

    def step(self, d: int, w_bar: Tensor, memory: None):
        return torch.sigmoid(self.W_out[d](torch.relu(self.W_in[d](w_bar)))), None


class IndependentController(nn.Module):
    """TSC_indp: step sizes as explicit parameters, kept in (0, 1) like the others by the sigmoid."""

    def __init__(self, described: int, channels: int, reduction: int, steps: int):
        super().__init__()
        self.logit = nn.ParameterList(torch.zeros(channels) for _ in range(steps))

    def step(self, d: int, w_bar: Tensor, memory: None):
        return torch.sigmoid(self.logit[d]), None


class FixedController(nn.Module):
    """One constant h for all steps, as in Eq. 1."""

    def __init__(self, described: int, channels: int, reduction: int, steps: int, value: float = 1.0):
        super().__init__()
        self.channels, self.value = channels, value

    def step(self, d: int, w_bar: Tensor, memory: None):
        return w_bar.new_full((self.channels,), self.value), None


CONTROLLERS = {
    "lstm": LSTMController,
    "two_fc": TwoFCController,
    "independent": IndependentController,
    "fixed": FixedController,
}


# -- the blocks, each written out with its step size (Eq. 13) --------------------------------------------------------


def timm_basic_block(block, y: Tensor, dt: Tensor) -> Tensor:
    x = block.aa(block.act1(block.drop_block(block.bn1(block.conv1(y)))))
    x = block.bn2(block.conv2(x))
    return block.act2(timm_shortcut(block, y) + timm_attention(block, x) * per_channel(dt))


def timm_bottleneck(block, y: Tensor, dt: Tensor) -> Tensor:
    x = block.act1(block.bn1(block.conv1(y)))
    x = block.aa(block.act2(block.drop_block(block.bn2(block.conv2(x)))))
    x = block.bn3(block.conv3(x))
    return block.act3(timm_shortcut(block, y) + timm_attention(block, x) * per_channel(dt))


def timm_attention(block, x: Tensor) -> Tensor:
    """Squeeze-excite is part of F: the gate sees the branch before its step size."""
    if block.se is not None:
        x = block.se(x)
    return x if block.drop_path is None else block.drop_path(x)


def timm_shortcut(block, y: Tensor) -> Tensor:
    return y if block.downsample is None else block.downsample(y)


def torchvision_basic_block(block, y: Tensor, dt: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(y)))
    x = block.bn2(block.conv2(x))
    shortcut = y if block.downsample is None else block.downsample(y)
    return block.relu(shortcut + x * per_channel(dt))


def torchvision_bottleneck(block, y: Tensor, dt: Tensor) -> Tensor:
    x = block.relu(block.bn1(block.conv1(y)))
    x = block.relu(block.bn2(block.conv2(x)))
    x = block.bn3(block.conv3(x))
    shortcut = y if block.downsample is None else block.downsample(y)
    return block.relu(shortcut + x * per_channel(dt))


def cifar_basic_block(block, y: Tensor, dt: Tensor) -> Tensor:
    x = F.relu(block.bn1(block.conv1(y)))
    x = block.bn2(block.conv2(x))
    return F.relu(block.shortcut(y) + x * per_channel(dt))


def dense_layer(layer, y: Tensor, dt: Tensor) -> Tensor:
    """Appendix C: the new feature is multiplied, then concatenated with the old ones."""
    new = layer.conv(F.relu(layer.norm(y)))
    return torch.cat([y, new * per_channel(dt)], 1)


def per_channel(dt: Tensor) -> Tensor:
    return dt.view(1, -1, 1, 1)


# For each block: its stepped forward, the convolutions that describe it, and the paper's reduction r.
BLOCKS = {
    timm_resnet.BasicBlock: (timm_basic_block, ("conv1", "conv2"), 4),
    timm_resnet.Bottleneck: (timm_bottleneck, ("conv1", "conv3"), 8),
    torchvision_resnet.BasicBlock: (torchvision_basic_block, ("conv1", "conv2"), 4),
    torchvision_resnet.Bottleneck: (torchvision_bottleneck, ("conv1", "conv3"), 8),
    cifar_resnet.BasicBlock: (cifar_basic_block, ("conv1", "conv2"), 4),
    DenseLayer: (dense_layer, ("conv",), 4),
    CliqueLayer: (None, ("from_input", "from_layers"), 4),
}


def averaged_weights(block: nn.Module) -> Tensor:
    """w_bar of Section 3.2: each convolution averaged over its input dimension, flattened, then concatenated."""
    convs = [block.get_submodule(name) for name in BLOCKS[type(block)][1]]
    return torch.cat([conv.weight.mean(dim=1).reshape(-1) for conv in convs])


# -- the stages ------------------------------------------------------------------------------------------------------


class LiteralStage(nn.Module):
    """The blocks of one feature size, under their old keys, with the controller that they share."""

    def __init__(self, blocks: nn.Module, controller: nn.Module):
        super().__init__()
        self.steps = len(list(blocks.children()))
        for name, block in blocks.named_children():
            self.add_module(name, block)
        self.controller = controller

    def stepped(self) -> Iterator[tuple[nn.Module, Tensor]]:
        """Each block with its step size, which is computed when the block is reached."""
        memory = None
        for d in range(self.steps):
            block = getattr(self, str(d))
            dt, memory = self.controller.step(d, averaged_weights(block), memory)
            yield block, dt

    def forward(self, y: Tensor) -> Tensor:
        for block, dt in self.stepped():
            y = BLOCKS[type(block)][0](block, y, dt)
        return y

    def step_sizes(self) -> Tensor:
        """All step sizes of the stage, (steps, channels), as the forward uses them."""
        return torch.stack([dt for _, dt in self.stepped()])


class LiteralCliqueStage(LiteralStage):
    """A clique block: each new feature is multiplied by its layer's step size, the same one in both of its stages."""

    def forward(self, y: Tensor) -> Tensor:
        features, known = [], []
        for layer, dt in self.stepped():
            features.append(layer(features, y) * per_channel(dt))
            known.append((layer, dt))
        for d, (layer, dt) in enumerate(known):
            others = features[:d] + features[d + 1 :]
            features[d] = layer(others) * per_channel(dt)
        return torch.cat(features, 1)


def make_literal(model: nn.Module, kind: str, reduction: int | None = None, **options: float) -> nn.Module:
    """Put a controller of a kind on every stage of a network, in place; ``value=`` is the step of ``fixed``."""
    for name, child in list(model.named_children()):
        blocks = list(child.children())
        if not blocks or type(blocks[0]) not in BLOCKS:
            continue
        _, _, default_reduction = BLOCKS[type(blocks[0])]
        described = averaged_weights(blocks[0])
        controller = CONTROLLERS[kind](
            len(described), output_channels(blocks[0]), reduction or default_reduction, len(blocks), **options
        )
        stage = LiteralCliqueStage if isinstance(child, CliqueBlock) else LiteralStage
        setattr(model, name, stage(child, controller.to(described)))
    return model


def output_channels(block: nn.Module) -> int:
    """Channels of the branch: rows of the last convolution that describes it."""
    return block.get_submodule(BLOCKS[type(block)][1][-1]).out_channels
