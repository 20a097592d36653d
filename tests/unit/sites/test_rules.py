"""Every way in which a step size enters a layer, on the smallest network that has it: found, proved, folded."""

import pytest
import timm
import torch
import torchvision
from timm.layers import BatchNormAct2d, LayerNorm2d, LayerScale, RmsNorm, ScaledStdConv2d, SEModule
from torch import nn

import timestepper
from timestepper.reparam import Entry

transformers = pytest.importorskip("transformers")
WIDTH = 8


class Block(nn.Module):
    """x + last(relu(first(x))), with something around it."""

    def __init__(self, first: nn.Module, *last: nn.Module):
        super().__init__()
        self.first, self.last = first, nn.Sequential(*last)

    def forward(self, x):
        return x + self.last(torch.relu(self.first(x)))


class Gemma(nn.Module):
    """An RMS norm that computes with 1 + w."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + self.weight.float())


class Scale(nn.Module):
    """A learned scale of an odd shape."""

    def __init__(self):
        super().__init__()
        self.layer_scale = nn.Parameter(torch.full((WIDTH, 1, 1), 1e-6))

    def forward(self, x):
        return self.layer_scale * x


class Ghost(nn.Module):
    """A branch that ends in a concatenation, whose second part is made of the first."""

    def __init__(self):
        super().__init__()
        half = WIDTH // 2
        self.main = nn.Sequential(nn.Conv2d(WIDTH, half, 1), nn.BatchNorm2d(half))
        self.cheap = nn.Sequential(nn.Conv2d(half, half, 3, padding=1, groups=half), nn.BatchNorm2d(half))

    def forward(self, x):
        main = self.main(x)
        return torch.cat([main, self.cheap(main)], 1)


class Part(nn.Module):
    """A sum onto the first channels of the branch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = conv(), nn.Sequential(nn.Conv2d(WIDTH, WIDTH + 3, 1), nn.BatchNorm2d(WIDTH + 3))
        self.back = nn.Conv2d(WIDTH + 3, WIDTH, 1)

    def forward(self, x):
        y = self.last(torch.relu(self.first(x)))
        return self.back(torch.cat([y[:, :WIDTH] + x, y[:, WIDTH:]], 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x):
        return x + self.attention(x, x, x)[0]


class Parallel(nn.Module):
    """Two branches that take one step, as in GPT-NeoX."""

    def __init__(self):
        super().__init__()
        self.one, self.two = mlp(), mlp()

    def forward(self, x):
        return self.one(x) + self.two(x) + x


class Stacked(nn.Module):
    """Two branches, stacked and summed, as in timm's parallel blocks."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleList([mlp(), mlp()])

    def forward(self, x):
        return x + torch.stack([way(x) for way in self.ways]).sum(dim=0)


class Window(nn.Module):
    """Reshapes, permutes, rolls, dropout and constants behind the last layer, as in Swin."""

    def __init__(self):
        super().__init__()
        self.mlp, self.dropout = mlp(), nn.Dropout(0.5)

    def forward(self, x):
        b, n, c = x.shape
        y = self.mlp(x).view(b, 2, n // 2, c).transpose(1, 2).reshape(b, n, c)
        return x + 0.5 * self.dropout(y.roll(1, dims=1))


def conv() -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))


def image(*last: nn.Module) -> nn.Module:
    return Block(conv(), *last)


def tokens(*last: nn.Module) -> nn.Module:
    return Block(nn.Linear(WIDTH, WIDTH), *last)


PIXELS, TOKENS = (2, WIDTH, 6, 6), (2, 4, WIDTH)
FROZEN = torchvision.ops.FrozenBatchNorm2d
CASES = {
    "batch norm": (lambda: image(conv(), nn.BatchNorm2d(WIDTH)), PIXELS, ["weight", "bias"]),
    "frozen batch norm": (lambda: image(conv(), FROZEN(WIDTH)), PIXELS, ["bias", "weight"]),
    "batch norm without activation": (
        lambda: image(conv(), BatchNormAct2d(WIDTH, apply_act=False)),
        PIXELS,
        ["weight", "bias"],
    ),
    "group norm": (lambda: image(conv(), nn.GroupNorm(2, WIDTH)), PIXELS, ["weight", "bias"]),
    "layer norm": (lambda: tokens(nn.LayerNorm(WIDTH)), TOKENS, ["weight", "bias"]),
    "layer norm 2d": (lambda: image(LayerNorm2d(WIDTH)), PIXELS, ["weight", "bias"]),
    "rms norm": (lambda: tokens(nn.RMSNorm(WIDTH)), TOKENS, ["weight"]),
    "timm's rms norm": (lambda: tokens(RmsNorm(WIDTH)), TOKENS, ["weight"]),
    "gemma's rms norm": (lambda: tokens(Gemma()), TOKENS, ["weight"]),
    "convolution 1d": (lambda: Block(nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)), (2, WIDTH, 5), None),
    "convolution 2d": (lambda: image(conv()), PIXELS, ["weight", "bias"]),
    "convolution 3d": (lambda: Block(*(nn.Conv3d(WIDTH, WIDTH, 1) for _ in range(2))), (2, WIDTH, 2, 3, 3), None),
    "batch norm 1d": (lambda: tokens(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), (4, WIDTH), None),
    "linear": (lambda: tokens(nn.Linear(WIDTH, WIDTH)), TOKENS, ["weight", "bias"]),
    "stored transposed": (lambda: tokens(transformers.pytorch_utils.Conv1D(WIDTH, WIDTH)), TOKENS, ["weight", "bias"]),
    "layer scale": (lambda: tokens(nn.Linear(WIDTH, WIDTH), LayerScale(WIDTH)), TOKENS, ["gamma"]),
    "scale of an odd shape": (lambda: image(conv(), Scale()), PIXELS, ["layer_scale"]),
    "standardised with a gain": (lambda: image(ScaledStdConv2d(WIDTH, WIDTH, 3, padding=1)), PIXELS, ["gain", "bias"]),
    "squeeze-excite": (
        lambda: image(conv(), nn.BatchNorm2d(WIDTH), SEModule(WIDTH)),
        PIXELS,
        ["weight", "weight", "bias"],
    ),
    "concatenation": (lambda: image(Ghost()), PIXELS, None),
    "a part of the channels": (Part, PIXELS, ["weight", "bias"]),
    "attention that is read": (Attention, TOKENS, ["weight", "bias"]),
    "two branches": (Parallel, TOKENS, ["weight", "bias"] * 2),
    "two branches, stacked": (Stacked, TOKENS, ["weight", "bias"] * 2),
    "moved about": (Window, TOKENS, ["weight", "bias"]),
}


@pytest.mark.parametrize("case", CASES)
def test_rule(case, attach_and_fold):
    make, shape, names = CASES[case]
    net = nn.Sequential(make())
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    example = torch.randn(shape)
    found = timestepper.discover(net, example)
    assert not [sum_ for sum_ in found.refused if sum_.residual]
    assert list(found.errors) == [found.stages[0].sites[0].path]
    assert max(found.errors.values()) < 1e-10
    entries = found.stages[0].sites[0].entries
    assert names is None or [entry.name for entry in entries] == names
    attach_and_fold(net, example)


def test_the_fast_path_of_an_encoder_layer_takes_its_steps():
    """It is taken under eval and no_grad, calls none of its layers and reads all their weights."""
    layers = [nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, norm_first=first) for first in (True, False)]
    net = nn.Sequential(*layers)
    x = torch.randn(2, 5, 16)
    timestepper.attach(net, "independent", example=x)
    assert [len(dt) for dt in timestepper.step_sizes(net).values()] == [2, 2]
    net.train()
    for layer in layers:
        layer.dropout.p = layer.dropout1.p = layer.dropout2.p = layer.self_attn.dropout = 0.0
    with torch.no_grad():
        slow = net(x)
        calls = []
        net.eval()
        fast = torch._transformer_encoder_layer_fwd
        torch._transformer_encoder_layer_fwd = lambda *args: calls.append(1) or fast(*args)
        try:
            torch.testing.assert_close(net(x), slow)
            torch.testing.assert_close(timestepper.fold(net)(x), slow)
            torch.testing.assert_close(layers[0](x), timestepper.fold(net)[0](x))
        finally:
            torch._transformer_encoder_layer_fwd = fast
    assert calls


def test_two_scales_of_one_block_take_two_steps(attach_and_fold):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = mlp(), mlp()
            self.scale_1, self.scale_2 = (nn.Parameter(torch.rand(WIDTH)) for _ in range(2))

        def forward(self, x):
            x = x + self.scale_1 * self.one(x)
            return x + self.scale_2 * self.two(x)

    net = nn.Sequential(Two(), Two())
    found = timestepper.discover(net, torch.randn(TOKENS))
    assert list(found.errors) == ["0.scale_1", "0.scale_2", "1.scale_1", "1.scale_2"]
    attach_and_fold(net, torch.randn(TOKENS))
    timestepper.attach(net, "independent", example=torch.randn(TOKENS))
    x = torch.randn(TOKENS)
    whole = timestepper.fold(net)
    torch.testing.assert_close(net[0](x), whole[0](x))  # a block by itself has its steps too


def test_one_block_in_two_places_takes_one_step(attach_and_fold):
    block = tokens(nn.Linear(WIDTH, WIDTH))
    net = nn.Sequential(block, nn.Tanh(), block)
    assert list(timestepper.discover(net, torch.randn(TOKENS)).errors) == ["0"]
    attach_and_fold(net, torch.randn(TOKENS))


def test_an_offset_leaves_every_bit_where_the_step_is_one():
    weight = torch.randn(50)
    assert torch.equal(Entry("l", "w", offset=1.0).apply(weight, torch.ones(50)), weight)
    assert torch.equal(Entry("l", "w", divide=True).apply(weight, torch.ones(50)), weight)


def test_a_piece_of_the_step_sizes_enters_some_rows():
    weight, dt = torch.ones(5, 2), torch.tensor([2.0, 3.0, 4.0])
    entry = Entry("l", "w", begin=1, length=2, row=2)
    assert entry.apply(weight, dt)[:, 0].tolist() == [1, 1, 3, 4, 1]


def test_quantisation_ready_networks(attach_and_fold):
    from torchvision.models.quantization.resnet import QuantizableBasicBlock, QuantizableResNet

    net = QuantizableResNet(QuantizableBasicBlock, [1, 1, 1, 1], num_classes=3)
    found = timestepper.discover(net, torch.randn(2, 3, 32, 32))
    assert [site.path for stage in found.stages for site in stage.sites] == [f"layer{n}.0" for n in (1, 2, 3, 4)]
    attach_and_fold(net, torch.randn(2, 3, 32, 32))


def test_a_depthwise_kernel_describes_its_branch_by_one_number_per_channel():
    net = timm.create_model("test_convnext")
    site = timestepper.discover(net, torch.randn(2, 3, 64, 64)).stages[0].sites[0]
    width = site.channels
    assert site.means[0] == (1, 2, 3)
    assert site.descriptor == width + sum(net.get_submodule(name).weight.shape[0] for name in site.convs[1:])


def test_literal_scaling_by_hand():
    """The proof's own oracle, once without its machinery."""
    net = nn.Sequential(tokens(nn.Linear(WIDTH, WIDTH)), tokens(nn.Linear(WIDTH, WIDTH))).double()
    x = torch.randn(TOKENS, dtype=torch.float64)
    timestepper.attach(net, "lstm", example=x)
    (dt,), attached = timestepper.step_sizes(net).values(), net(x)
    y = x
    for block, step in zip(timestepper.detach(net), dt, strict=True):
        y = y + step * block.last(torch.relu(block.first(y)))
    torch.testing.assert_close(attached, y, rtol=1e-13, atol=1e-13)
