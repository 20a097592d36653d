"""Networks too large to copy are proved block by block."""

import pytest
import torch
from torch import nn

import timestepper
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


NETWORKS = {"llama": (llama, None), "encoder": (encoder, torch.randn(2, 5, 16))}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_sites_are_proved(name, monkeypatch):
    make, example = NETWORKS[name]
    net = make()
    whole = timestepper.discover(net, example)
    monkeypatch.setattr(blocks, "LARGE", 0)
    parts = timestepper.discover(net, example)
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
    monkeypatch.setattr(blocks, "twin", lambda part: copied.append(part.block) or original(part))
    monkeypatch.setattr("timestepper.sites.finding.twin", lambda net: pytest.fail("copied whole"))
    found = timestepper.discover(net)
    assert len(found.errors) == 6
    assert {type(part).__name__ for part in copied} == {"LlamaDecoderLayer"}
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    assert not any(vars(parameter) for parameter in net.parameters())


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
