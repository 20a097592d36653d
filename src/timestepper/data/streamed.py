"""Loader for image files: worker processes decode and crop, the device normalises.

A batch crosses from worker to trainer as bytes, a quarter of what floats would take of /dev/shm.
"""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from timestepper.data.augment import Augment, Normaliser
from timestepper.data.dataset import FolderImages
from timestepper.data.decode import bad_image, bombs_refused, decode_rgb
from timestepper.data.order import Plan, mix
from timestepper.data.workers import parallel, worker_trouble
from timestepper.errors import DataError, TimestepperError


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """torchvision's transforms draw from torch's global CPU generator: seed it for one image, then put it back.

    Not `torch.manual_seed`, which would reseed the GPUs too.
    """
    state = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)


def transform(images: FolderImages, augment: Augment) -> Any:
    from torchvision.transforms import v2

    if augment.resized_crop:
        steps: list[Any] = [v2.RandomResizedCrop(images.size)]
    else:
        steps = [v2.Resize(images.resize), v2.CenterCrop(images.size)]
    return v2.Compose([*steps, v2.RandomHorizontalFlip()] if augment.flip else steps)


class BatchReader:
    """Maps (epoch, sample indices) to the pixels of that batch, each sample by a seed of its own.

    Errors are returned, not raised: torch would wrap a raised one into many lines of a worker's traceback.
    """

    def __init__(self, images: FolderImages, augment: Augment, seed: int):
        self.images = images
        self.seed = seed
        self.transform = transform(images, augment)

    def __getitem__(self, key: tuple[int, list[int]]) -> Tensor | TimestepperError:
        epoch, samples = key
        size = self.images.size
        try:
            pixels = torch.zeros(len(samples), size, size, 3, dtype=torch.uint8)
            if get_worker_info() is not None:
                self.share(pixels)
            with bombs_refused():
                for slot, sample in enumerate(samples):
                    if sample >= 0:
                        pixels[slot] = self.read(epoch, sample)
        except TimestepperError as error:
            return error
        return pixels

    def share(self, pixels: Tensor) -> None:
        """Here and not in the queue's thread, where a full /dev/shm would lose the batch and the trainer wait."""
        try:
            pixels.share_memory_()
        except (RuntimeError, OSError) as error:
            raise worker_trouble(error) from error

    def read(self, epoch: int, sample: int) -> Tensor:
        path = self.images.paths[sample]
        try:
            image: Image.Image = decode_rgb(path)
            with global_seed(mix("augment", self.seed, epoch, sample)):
                return torch.from_numpy(np.array(self.transform(image)))
        except Exception as error:
            raise bad_image(path, error) from error


class StreamedLoader:
    """Any number of workers gives the same batches, because each sample brings its own seed."""

    def __init__(
        self,
        images: FolderImages,
        plan: Plan,
        augment: Augment,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
        workers: int = 0,
    ):
        if augment.pad:
            raise DataError("augment with pad is for images held in memory; use 'resized_crop' or 'none' here")
        self.labels = images.labels
        self.plan = plan
        self.device = device
        self.reader = BatchReader(images, augment if plan.training else Augment(), plan.seed)
        self.normalise = Normaliser(images.mean, images.std, device, memory_format)
        self.workers = workers
        self.samples = plan.samples
        self.steps = plan.steps
        self.local_batch = plan.local_batch
        self.input_shape = images.input_shape

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        indices = self.plan.indices(epoch)[first_step:]
        labels = self.labels[indices.clamp(min=0)].masked_fill_(indices < 0, -1).to(self.device)
        keys = [(epoch, samples) for samples in indices.tolist()]
        with closing(self.read(keys)) as batches:
            for pixels, answers in zip(batches, labels, strict=True):
                if isinstance(pixels, TimestepperError):
                    raise pixels
                yield self.normalise(pixels.to(self.device, non_blocking=True)), answers

    def read(self, keys: list[tuple[int, list[int]]]) -> Generator[Tensor | TimestepperError, None, None]:
        if self.workers:
            return parallel(self.reader, keys, self.workers, pin_memory=self.device.type == "cuda")
        return (self.reader[key] for key in keys)
