"""Branches that train mode skips by chance, written by hand: they are proved in eval mode, where all of them run."""

import pytest
import torch
from torch import nn

import timestepper

WIDTH = 8
EXAMPLE = torch.randn(2, 5, WIDTH)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = mlp(), mlp()

    @property
    def skips(self) -> bool:
        return self.training and torch.rand(()).item() < 0.5

    def forward(self, x):
        if self.skips:
            return x
        x = x + self.one(x)
        return x + self.two(x)


class EachBranch(Block):
    """Where the first branch is skipped, the second one's sum is the first that runs."""

    def forward(self, x):
        if not self.skips:
            x = x + self.one(x)
        if not self.skips:
            x = self.two(x) + x
        return x


class Loop(Block):
    """All sums in one module."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(mlp() for _ in range(5)), mlp()

    def forward(self, x):
        for layer in self.layers:
            if not self.skips:
                x = x + layer(x)
        return x


class Shapes(Loop):
    """The last sum adds features of another shape."""

    def forward(self, x):
        y = super().forward(x).mean(1)
        return y + self.head(y)


NETWORKS = {
    "blocks": (lambda: nn.Sequential(*(Block() for _ in range(6))), 12),
    "branches": (lambda: nn.Sequential(*(EachBranch() for _ in range(6))), 12),
    "in one module": (Loop, 5),
    "of two shapes": (Shapes, 6),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_all_branches_are_found(case):
    make, sites = NETWORKS[case]
    found = timestepper.discover(make(), EXAMPLE)
    assert len(found.errors) == sites, found
    assert found.share == 1
    assert max(found.errors.values()) < 1e-10


def test_layerdrop_of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2, "intermediate_size": 32}
    ears = {"conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16}
    config = transformers.Wav2Vec2Config(**sizes, **ears, num_conv_pos_embedding_groups=2, layerdrop=0.5)
    found = timestepper.discover(transformers.Wav2Vec2Model(config), torch.randn(2, 800))
    assert len(found.errors) == 12, found


class Other(Block):
    """Train mode adds without a sum, and not the branch itself."""

    def forward(self, x):
        y = self.one(x)
        return torch.sub(x, y * y) if self.training else x + y


class Wrong(EachBranch):
    """What runs in train mode is still looked at."""

    def forward(self, x):
        y = self.one(x)
        return x + (y * y if self.training else y)


@pytest.mark.parametrize(
    ("block", "reason"), [(Other, "in train mode the output is off by"), (Wrong, "proved wrong: .* in train mode")]
)
def test_what_train_mode_does_in_another_way_is_refused(block, reason):
    with pytest.raises(timestepper.errors.NoSitesError, match=reason):
        timestepper.attach(nn.Sequential(block(), block()), example=EXAMPLE)
