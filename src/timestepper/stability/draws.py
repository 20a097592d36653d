"""Random numbers that belong to a sample: a function of (seed, ..., sample index) and of nothing else.

So the noise on an image does not depend on the batch, the workers, the device or the number of processes.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def generator(*key: int) -> np.random.Generator:
    """The generator that belongs to a key of non-negative numbers."""
    return np.random.default_rng(key)


def normal(like: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Standard normal numbers in the shape of a batch, for samples with these indices."""
    return _stacked(like, [generator(*key, i).standard_normal(like.shape[1:], dtype=np.float32) for i in indices])


def uniform(like: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Numbers in [0, 1) in the shape of a batch, for samples with these indices."""
    return _stacked(like, [generator(*key, i).random(like.shape[1:], dtype=np.float32) for i in indices])


def poisson(rates: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Poisson counts with these rates, for samples with these indices."""
    rows = rates.double().cpu().numpy()
    return _stacked(rates, [generator(*key, i).poisson(row) for i, row in zip(indices, rows, strict=True)])


def _stacked(like: Tensor, rows: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(rows)).to(like)
