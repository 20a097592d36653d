"""Networks too large to copy are proved block by block."""

import pytest
import timm
import torch
from torch import nn

import timestepper
from timestepper.errors import MismatchError
from timestepper.sites import blocks

transformers = pytest.importorskip("transformers")


@pytest.fixture
def _everything_is_large(monkeypatch):
    monkeypatch.setattr(blocks, "LARGE", 0)


def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48, vocab_size=50
    )
    return transformers.LlamaForCausalLM(config)


def encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 2)


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)))


class Flat(nn.Module):
    """Has its sums itself, not in blocks."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Branch() for _ in range(11))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


class Repeated(nn.Module):
    """One branch, three sums, in a block that runs once."""

    def __init__(self):
        super().__init__()
        self.inner = Branch()

    def forward(self, x):
        for _ in range(3):
            x = x + self.inner(x)
        return x


class Late(nn.Module):
    """The sum of each block is made by the next one."""

    def __init__(self):
        super().__init__()
        self.layers, self.adders = nn.ModuleList([Branch(), Branch()]), nn.ModuleList([Adder(), Adder()])

    def forward(self, x):
        for layer, adder in zip(self.layers, self.adders, strict=True):
            x = adder(x, layer(x))
        return x


class Adder(nn.Module):
    def forward(self, x, y):
        return x + y


class Recording(nn.Module):
    """Its blocks are given tensors that belong to a graph."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Repeated(), Repeated())

    def forward(self, x):
        with torch.enable_grad():
            return self.blocks(x)


def shared():
    block = Repeated()
    return nn.Sequential(nn.Sequential(Repeated(), block), nn.Sequential(block, Repeated(), block))


def levit():
    """Keeps what it has computed once."""
    return timm.create_model("levit_128s", img_size=64, num_classes=5, depth=(1, 1, 1))


TOKENS = torch.randn(2, 5, 8)
NETWORKS = {
    "llama": (llama, None),
    "encoder": (encoder, torch.randn(2, 5, 16)),
    "levit": (levit, torch.randn(2, 3, 64, 64)),
    "flat": (Flat, TOKENS),
    "repeated": (lambda: nn.Sequential(Repeated(), Repeated()), TOKENS),
    "late": (lambda: nn.Sequential(Late(), Late()), TOKENS),
    "recording": (Recording, TOKENS),
    "shared": (shared, TOKENS),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_sites_are_proved(name, monkeypatch):
    make, example = NETWORKS[name]
    net = make()
    whole = timestepper.discover(net, example)
    monkeypatch.setattr(blocks, "LARGE", 0)
    parts = timestepper.discover(net, example)
    assert parts.errors
    assert parts.stages == whole.stages
    assert max(parts.errors.values()) < 1e-10
    assert [(sum_.path, sum_.reason) for sum_ in parts.refused] == [(s.path, s.reason) for s in whole.refused]


@pytest.mark.usefixtures("_everything_is_large")
def test_half_precision_networks_are_not_copied_whole(monkeypatch):
    """Only blocks are, and the network's own numbers do not change."""
    net = llama().to(torch.bfloat16)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    copied = []
    original = blocks.twin
    monkeypatch.setattr(blocks, "twin", lambda part: copied.append(part.get_submodule(part._path)) or original(part))
    monkeypatch.setattr("timestepper.sites.finding.twin", lambda net: pytest.fail("copied whole"))
    found = timestepper.discover(net)
    assert len(found.errors) == 6
    assert {type(part).__name__ for part in copied} == {"LlamaDecoderLayer"}
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert not any(vars(parameter) for parameter in net.parameters())


class Rescaled(nn.Sequential):
    """Writes into its weights, once, as RWKV does for evaluation in half precision."""

    done = False

    def forward(self, x):
        if not self.done:
            self[0].inner.last.weight.data.div_(2)
            self.done = True
        return super().forward(x)


@pytest.mark.usefixtures("_everything_is_large")
def test_a_forward_that_writes_weights_does_not_get_those_of_the_network():
    net = Rescaled(Repeated(), Repeated())
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with pytest.raises(MismatchError, match=r"^the forward writes into 0\.inner\.last\.weight.*call it once in eval"):
        timestepper.discover(net, TOKENS)
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    net(TOKENS)
    assert len(timestepper.discover(net, TOKENS).errors) == 2


@pytest.mark.usefixtures("_everything_is_large")
def test_a_block_that_is_too_large_itself_is_refused(monkeypatch):
    monkeypatch.setattr(blocks, "MOST", 11 * (8 * 12 + 12 + 12 * 8 + 8) - 1)
    found = timestepper.discover(nn.Sequential(Flat(), Repeated()), TOKENS)
    assert set(found.errors) == {"1"}
    assert {"put its sum and its branch into a module" in sum_.reason for sum_ in found.refused} == {True}


@pytest.mark.usefixtures("_everything_is_large")
def test_a_wrong_rule_is_found_here_too():
    class Cheat(nn.Linear):
        def forward(self, x):
            return super().forward(x) / self.weight.detach().abs().mean()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 8), Cheat(8, 8)

        def forward(self, x):
            return x + self.last(torch.relu(self.first(x)))

    found = timestepper.discover(nn.Sequential(Block(), Block()), torch.randn(3, 8))
    assert not found.stages
    assert all("proved wrong" in sum_.reason for sum_ in found.refused)
