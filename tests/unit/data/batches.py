"""Batches of loaders, compared."""

import torch


def equal(one, other):
    return len(one) == len(other) and all(
        torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True)
    )
