"""Batches of loaders, compared."""

import torch


def joined(shares):
    """The batches of one process, from those of several."""
    return [tuple(map(torch.cat, zip(*step, strict=True))) for step in zip(*shares, strict=True)]


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)
    )
