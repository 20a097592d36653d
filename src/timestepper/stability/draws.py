"""Random numbers that belong to a sample: a function of (seed, ..., sample index) and of nothing else.

So the noise on an image does not depend on the batch, the workers, the device or the number of processes. The key is of
non-negative numbers, ``indices`` say which samples these are.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def normal(like: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Standard normal numbers in the shape of a batch."""
    rows = [np.random.default_rng((*key, i)).standard_normal(like.shape[1:], dtype=np.float32) for i in indices]
    return torch.from_numpy(np.stack(rows)).to(like)


def uniform(like: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Numbers in [0, 1) in the shape of a batch."""
    rows = [np.random.default_rng((*key, i)).random(like.shape[1:], dtype=np.float32) for i in indices]
    return torch.from_numpy(np.stack(rows)).to(like)


def poisson(rates: Tensor, indices: Sequence[int], *key: int) -> Tensor:
    """Poisson counts with these rates."""
    each = zip(indices, rates.double().cpu().numpy(), strict=True)
    return torch.from_numpy(np.stack([np.random.default_rng((*key, i)).poisson(row) for i, row in each])).to(rates)
