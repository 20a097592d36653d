"""What the stability command looks at, and the figures that were asked for, as plain data."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import timestepper
from timestepper import data as data_sets
from timestepper import torchrun
from timestepper.engine import distributed
from timestepper.engine.runtime import choose_device
from timestepper.errors import StabilityError, UnknownNameError
from timestepper.recipe.load import import_kind
from timestepper.runs.load import restore
from timestepper.saving import load_folded
from timestepper.sites import create_model, input_pixels
from timestepper.stability import Pixels, analyse, ode, robustness
from timestepper.stability.robustness import Share

ROBUSTNESS = ("noise", "attacks", "corruptions")
BATCH = 250  # images at a time in the robustness figures; changes no result
TIMEOUT = 1800.0  # seconds that a process of torchrun waits for the others


@dataclass
class Examined:
    """A network and the test images that belong to it, if any."""

    name: str
    net: nn.Module
    images: Any = None

    def batches(self, count: int | None, batch: int, group: distributed.Group) -> Iterator[tuple[Tensor, Tensor]]:
        """This process's share of ``count`` test images, normalised; a label of -1 marks an empty slot."""
        images = self.images.some(count or len(self.images))
        batch = group.world * -(-min(batch, len(images)) // group.world)
        place: dict[str, Any] = {"rank": group.rank, "world": group.world, "device": group.device}
        return data_sets.loader(images, batch_size=batch, seed=0, training=False, **place).epoch(0)

    def inputs(self, samples: int, pixels: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """A few inputs and their labels; random ones, without labels, where there is no data set."""
        if self.images is not None:
            return next(self.batches(samples, samples, distributed.Group(device=device)))
        channels = next(p for p in self.net.parameters() if p.dim() == 4).shape[1]
        noise = torch.randn(samples, channels, pixels, pixels, generator=torch.Generator().manual_seed(0))
        return noise.to(device), None


def load(name: str, controller: str, weights: Path | None, data: str | None, root: Path | None) -> Examined:
    """A run with its test images; or a network by name, its weights random or saved, and a data set's test images."""
    if Path(name).is_dir():
        trained = restore(Path(name))
        return Examined(str(Path(name)), trained.model, trained.data.test)
    import_kind(controller)
    images = data_sets.open_dataset(data, root).test if data else None
    fitting: Any = images and {"num_classes": images.classes, "in_chans": images.input_shape[0]}
    torch.manual_seed(0)
    try:
        net = create_model(name, **(fitting or {}))
    except UnknownNameError as error:
        raise UnknownNameError(f"{error}; there is no folder of that name either") from None
    if weights is not None:
        net = load_folded(net, weights)
    return Examined(name, net if controller == "none" else timestepper.attach(net, controller), images)


def examine(
    subject: Examined,
    device: str,
    *,
    samples: int,
    pixels: int | None,
    bound: bool,
    kinds: Sequence[str],
    images: int | None,
) -> dict[str, Any] | None:
    """The theory on so many ``samples``, nothing of it for 0, and ``kinds`` of ROBUSTNESS on so many ``images``.

    None in all processes of torchrun but the first.
    """
    if kinds and subject.images is None:
        raise StabilityError("noise, attacks and corruptions need test images; give --data (digits needs no download)")
    place = choose_device(device, torchrun.local_rank())
    subject.net.to(place)
    found: dict[str, Any] = {"name": subject.name}
    if samples:
        inputs = subject.inputs(samples, pixels or input_pixels(subject.name), place)
        found |= analyse(subject.net, *inputs, bound=bound)
    if kinds:  # a group without work would be left by one process before another has joined
        group = distributed.start(place, TIMEOUT)
        try:
            found |= {kind: _robustness(kind, subject, images, group) for kind in kinds}
        finally:
            distributed.stop()
    return found if torchrun.rank() == 0 else None


def _robustness(kind: str, subject: Examined, count: int | None, group: distributed.Group) -> list[dict[str, Any]]:
    """One row per noise level, attack and epsilon, or corruption and severity."""
    batches, share = subject.batches(count, BATCH, group), Share(group.rank, group.world, group.sum)
    if kind == "noise":
        scores = robustness.noise(subject.net, batches, share=share)
        return [{"level": level, "draws": [asdict(s) for s in each]} for level, each in scores.items()]
    scale = Pixels(subject.images.mean, subject.images.std)
    if kind == "attacks":
        attacked = robustness.attacks(subject.net, batches, scale, share=share)
        return [
            {"attack": name, "epsilon": epsilon, **asdict(score)}
            for name, by_epsilon in attacked.items()
            for epsilon, score in by_epsilon.items()
        ]
    corrupted = robustness.corrupted(subject.net, batches, scale, share=share)
    return [
        {"corruption": name, "severity": severity, **asdict(score)}
        for name, each in corrupted.items()
        for severity, score in enumerate(each, 1)
    ]


def figure_1() -> dict[str, Any]:
    """Steps and errors of the three solutions."""
    return {
        name: {"steps": solution.steps, "rejected": solution.rejected, "error": solution.error}
        for name, solution in ode.figure_1().items()
    }
