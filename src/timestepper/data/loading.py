"""The one door to a loader, whatever the images are."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from timestepper.data.augment import Augment, resolve
from timestepper.data.dataset import ArrayImages, FolderImages
from timestepper.data.order import Plan
from timestepper.errors import UnknownNameError

DECODERS = ("cpu", "gpu", "auto")
"""Where JPEG files are decoded; auto takes the GPU where it can."""


class Loader(Protocol):
    """What a training loop may rely on.

    `epoch` yields this rank's share of each global batch: images (float32, NCHW, normalised) and labels (int64), both
    on the device. A label of -1 marks an empty slot of an evaluation batch, which counts nothing.
    """

    samples: int
    steps: int
    local_batch: int
    input_shape: tuple[int, int, int]

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]: ...


def loader(
    images: ArrayImages | FolderImages,
    *,
    batch_size: int,
    seed: int,
    training: bool,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode: str = "cpu",
    augment: Augment | str = "none",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Loader:
    """A loader of global batches of `batch_size`, shared equally by `world` processes.

    `workers` read image files in parallel (images in memory need none) and never change a batch. `decode` says what
    decodes them: `cpu`, `gpu`, or `auto`, the GPU if `device` is one that can and most of them are JPEGs; their pixels
    differ by a few levels. Evaluation (`training=False`) does not augment.
    """
    if decode not in DECODERS:
        raise UnknownNameError(f"no decoder is called {decode!r}; there are {', '.join(DECODERS)}")
    plan = Plan(len(images), batch_size, seed, training, rank, world)
    options = (plan, resolve(augment), torch.device(device), memory_format)
    if isinstance(images, ArrayImages):
        from timestepper.data.resident import ResidentLoader

        return ResidentLoader(images, *options)
    from timestepper.data.streamed import StreamedLoader

    return StreamedLoader(images, *options, workers=workers, decode=decode)
