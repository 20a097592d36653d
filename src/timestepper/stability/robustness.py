"""Error and loss of a classifier on changed inputs: Gaussian noise, attacks and common corruptions.

Takes any iterable of (images, labels) batches, normalised, on the model's device; a label of -1 marks an empty slot.
Results do not depend on the batch size or, with ``share``, on the number of processes: every random number belongs to a
sample's index in the data set.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.errors import StabilityError
from timestepper.stability import corruptions, draws
from timestepper.stability.attacks import Pixels, fgsm, pgd
from timestepper.stability.chain import full_precision, plain_copy, run

Batches = Iterable[tuple[Tensor, Tensor]]
Changed = Iterator[tuple[Hashable, Tensor]]  # the images of a batch, each time under the name of a change
Change = Callable[[nn.Module, Tensor, Tensor, Sequence[int]], Changed]  # of images and labels, by their indices
NOISE_LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
EPSILONS = (1 / 255, 2 / 255, 4 / 255, 8 / 255)


@dataclass(frozen=True)
class Score:
    """Error (a fraction) and mean cross-entropy over ``samples``."""

    error: float
    loss: float
    samples: int


@dataclass(frozen=True)
class Share:
    """Which part of each batch of the data set this process sees, and how sums over all processes are made."""

    rank: int = 0
    world: int = 1
    total: Callable[[Tensor], Tensor] = lambda sums: sums

    def indices(self, step: int, batch: int) -> range:
        """Places in the data set of the samples of one batch: loaders deal in data order, rank after rank."""
        first = (step * self.world + self.rank) * batch
        return range(first, first + batch)


_WHOLE = Share()


def noise(
    net: nn.Module,
    batches: Batches,
    levels: Sequence[float] = NOISE_LEVELS,
    *,
    draws_each: int = 5,
    seed: int = 0,
    share: Share = _WHOLE,
) -> dict[float, list[Score]]:
    """Gaussian noise of standard deviation ``level`` on the normalised inputs: one score per draw, by level.

    A draw is one noise image per sample, scaled by every level, so that levels differ in nothing else.
    """

    def noisy(model: nn.Module, images: Tensor, labels: Tensor, indices: Sequence[int]) -> Changed:
        for draw in range(draws_each):
            unit = draws.normal(images, indices, seed, draw)
            for level in dict.fromkeys(levels):
                if level or not draw:  # without noise one draw is like another
                    yield (level, draw), images + level * unit

    scores = _scores(net, batches, noisy, share)
    return {level: [scores[level, draw if level else 0] for draw in range(draws_each)] for level in levels}


def attacks(
    net: nn.Module,
    batches: Batches,
    scale: Pixels,
    epsilons: Sequence[float] = EPSILONS,
    *,
    steps: int = 20,
    seed: int = 0,
    share: Share = _WHOLE,
) -> dict[str, dict[float, Score]]:
    """FGSM and PGD within ``epsilon`` in pixel values (0 to 1), by name and epsilon."""

    def attacked(model: nn.Module, images: Tensor, labels: Tensor, indices: Sequence[int]) -> Changed:
        for epsilon in dict.fromkeys(epsilons):
            yield ("fgsm", epsilon), fgsm(model, images, labels, epsilon, scale)
            found = pgd(model, images, labels, epsilon, scale, indices=indices, steps=steps, seed=seed)
            yield ("pgd", epsilon), found

    scores = _scores(net, batches, attacked, share)
    return {name: {epsilon: scores[name, epsilon] for epsilon in epsilons} for name in ("fgsm", "pgd")}


def corrupted(
    net: nn.Module,
    batches: Batches,
    scale: Pixels,
    names: Sequence[str] = corruptions.NAMES,
    *,
    seed: int = 0,
    share: Share = _WHOLE,
) -> dict[str, list[Score]]:
    """Common corruptions: one score per severity, 1 to 5, by name."""

    def corrupted(model: nn.Module, images: Tensor, labels: Tensor, indices: Sequence[int]) -> Changed:
        pixels = scale.decode(images).clamp(0, 1)
        for name, severity in itertools.product(dict.fromkeys(names), corruptions.SEVERITIES):
            yield (name, severity), scale.encode(corruptions.corrupt(pixels, name, severity, indices, seed))

    scores = _scores(net, batches, corrupted, share)
    return {name: [scores[name, severity] for severity in corruptions.SEVERITIES] for name in names}


@full_precision()
@torch.no_grad()
def _scores(net: nn.Module, batches: Batches, change: Change, share: Share) -> dict[Hashable, Score]:
    """The score of every change, in one pass over the data."""
    model = plain_copy(net)
    sums: dict[Hashable, Tensor] = {}  # correct, loss, samples
    for step, (images, labels) in enumerate(batches):
        if not sums:
            run(model, images[:1])  # images that it cannot take are refused by their shape
        for name, inputs in change(model, images, labels, share.indices(step, len(images))):
            logits = model(inputs).float()
            loss = F.cross_entropy(logits.double(), labels, reduction="sum", ignore_index=-1)
            here = torch.stack([(logits.argmax(1) == labels).sum().double(), loss, (labels >= 0).sum().double()])
            sums[name] = sums[name] + here if name in sums else here
    if not sums:
        raise StabilityError("there are no images to evaluate; give at least one batch")
    found = share.total(torch.stack([*sums.values()])).tolist()
    if not found[0][2]:
        raise StabilityError("no image has a label (all are -1); give images with labels of 0 or more")
    scores = (Score(1 - correct / samples, loss / samples, int(samples)) for correct, loss, samples in found)
    return dict(zip(sums, scores, strict=True))
