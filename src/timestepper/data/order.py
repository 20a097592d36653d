"""Which samples a rank sees at which step: a function of (seed, epoch), with nothing carried between epochs."""

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from timestepper.errors import DataError


def mix(*parts: int | str) -> int:
    """One seed from several numbers, such as (seed, epoch, index), so that close inputs give unrelated seeds.

    A hash, because sums such as seed + epoch make epoch 1 of seed 0 equal epoch 0 of seed 1. The words among the
    parts keep the uses of one (seed, epoch) apart.
    """
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1  # torch takes seeds below 2**63 on every path


def generator(*parts: int | str) -> torch.Generator:
    """A fresh CPU generator: what it draws is the same whatever the device that uses the draws."""
    return torch.Generator().manual_seed(mix(*parts))


def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(samples, generator=generator("order", seed, epoch))


@dataclass(frozen=True)
class Plan:
    """The steps of an epoch and this rank's share of each global batch.

    Training shuffles and drops the last partial batch. Evaluation keeps the data order and fills the last batch up
    with -1, so that every sample comes exactly once, every batch has one size and every rank has as many steps.
    """

    samples: int
    batch_size: int
    seed: int
    training: bool
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise DataError(f"rank {self.rank} does not exist in a world of {self.world}")
        if self.batch_size < 1 or self.batch_size % self.world:
            raise DataError(
                f"the global batch of {self.batch_size} cannot be shared equally by {self.world} processes; "
                f"choose a multiple of {self.world}"
            )
        if self.samples == 0 or (self.training and self.samples < self.batch_size):
            raise DataError(
                f"{self.samples} samples do not fill one batch of {self.batch_size}; choose a smaller batch"
            )

    @property
    def local_batch(self) -> int:
        return self.batch_size // self.world

    @property
    def steps(self) -> int:
        return self.samples // self.batch_size if self.training else -(-self.samples // self.batch_size)

    def indices(self, epoch: int) -> Tensor:
        """Sample indices of this rank, (steps, local_batch); -1 marks a slot that holds no sample."""
        total = self.steps * self.batch_size
        if self.training:
            order = epoch_order(self.samples, self.seed, epoch)[:total]
        else:
            order = torch.full((total,), -1)
            order[: self.samples] = torch.arange(self.samples)
        return order.view(self.steps, self.world, self.local_batch)[:, self.rank]
