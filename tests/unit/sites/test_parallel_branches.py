"""Branches side by side, added to the stream one after the other: each is a site; what only looks like one is none."""

import pytest
import torch
from torch import nn

import timestepper

transformers = pytest.importorskip("transformers")
WIDTH = 8
TOKENS, PIXELS = (2, 4, WIDTH), (2, WIDTH, 6, 6)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))


class Parallel(nn.Module):
    def __init__(self, written):
        super().__init__()
        self.norm, self.written = nn.LayerNorm(WIDTH), written
        self.one, self.two, self.three = mlp(), mlp(), mlp()

    def forward(self, x):
        return self.written(self, x, self.norm(x))


def in_place(net, x, h):
    x = x + net.one(h)
    x += net.two(h)
    return x


def ends_in_relu(net, x, h):
    return x + net.one(h) + torch.relu(net.two(h))


ORDERS = {
    "the stream first": (lambda net, x, h: x + net.one(h) + net.two(h), 2),
    "the stream in the middle": (lambda net, x, h: net.one(h) + x + net.two(h), 2),
    "the stream last": (lambda net, x, h: net.two(h) + (net.one(h) + x), 2),
    "in place": (in_place, 2),
    "as a list": (lambda net, x, h: sum([x, net.one(h), net.two(h)]), 2),
    "three": (lambda net, x, h: x + net.one(h) + net.two(h) + net.three(h), 3),
}


@pytest.mark.parametrize("order", ORDERS)
def test_each_branch_is_a_site(order, attach_and_fold):
    written, branches = ORDERS[order]
    net = nn.Sequential(Parallel(written), Parallel(written))
    example = torch.randn(TOKENS)
    found = timestepper.discover(net, example)
    names = [f"{block}.{branch}" for block in "01" for branch in ("one", "two", "three")[:branches]]
    assert sorted(found.errors) == sorted(names)
    assert max(found.errors.values()) < 1e-10
    assert found.share == 1
    if branches == 3:  # else the third gets no gradient
        attach_and_fold(net, example)


def test_cohere_adds_its_branches_one_after_the_other():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    net = transformers.CohereModel(transformers.CohereConfig(vocab_size=50, eos_token_id=None, **sizes))
    found = timestepper.discover(net)
    assert len(found.errors) == 4
    assert found.share == 1


def test_the_second_branch_counts_where_it_is_refused():
    found = timestepper.discover(nn.Sequential(Parallel(ends_in_relu)), torch.randn(TOKENS))
    (sum_,) = found.refused
    assert "ends in relu" in sum_.reason
    assert found.share == 0.5


class Merged(nn.Module):
    """A residual sum, and beside it another kernel of its last layer: one layer, written as two."""

    def __init__(self):
        super().__init__()
        self.first, self.one, self.two = (nn.Conv2d(WIDTH, WIDTH, size, padding=size // 2) for size in (3, 3, 1))

    def forward(self, x):
        y = torch.relu(self.first(x))
        return x + self.one(y) + self.two(y)


NONE = {
    "no stream": (Parallel(lambda net, x, h: net.one(x) + net.two(x) + net.three(x)), TOKENS, 0, "neither of which"),
    "two streams": (Parallel(lambda net, x, h: (x + net.one(h)) + (x + net.two(h))), TOKENS, 2, "neither of which"),
    "one layer": (Merged(), PIXELS, 1, "part of one re-parameterised layer"),
}


@pytest.mark.parametrize("case", NONE)
def test_not_all_that_is_added_to_a_sum_is_a_branch(case):
    net, shape, sites, reason = NONE[case]
    found = timestepper.discover(nn.Sequential(net), torch.randn(shape))
    assert len(found.errors) == sites
    assert all(reason in sum_.reason and not sum_.residual for sum_ in found.refused)
    assert found.refused
