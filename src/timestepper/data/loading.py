"""What every loader is, and the one for images that live on the device as bytes."""

from abc import ABC, abstractmethod
from collections.abc import Generator

import torch
from torch import Tensor

from timestepper.data.augment import Augment, Normaliser, crop_and_flip, draw
from timestepper.data.dataset import ArrayImages, Images
from timestepper.data.order import Plan
from timestepper.errors import DataError


class Loader(ABC):
    """What a training loop may rely on.

    `epoch` yields this rank's share of each global batch: images (float32, NCHW, normalised) and labels (int64), both
    on the device. A label of -1 marks an empty slot of an evaluation batch, which counts nothing.
    """

    def __init__(self, images: Images, plan: Plan, device: torch.device, memory_format: torch.memory_format):
        self.plan, self.device = plan, device
        self.samples, self.steps, self.local_batch = plan.samples, plan.steps, plan.local_batch
        self.input_shape = images.input_shape
        self.normalise = Normaliser(images.mean, images.std, device, memory_format)

    @abstractmethod
    def epoch(self, epoch: int, first_step: int = 0) -> Generator[tuple[Tensor, Tensor], None, None]: ...


class ResidentLoader(Loader):
    """Prepares `chunk` batches in one pass (a few kernels on the device) and hands them out as slices: a step costs the
    host nothing more.

    The size of a chunk changes the memory used and never a value: every sample is prepared by itself.
    """

    def __init__(
        self,
        images: ArrayImages,
        plan: Plan,
        augment: Augment,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
        chunk: int = 64,
    ):
        if augment.resized_crop:
            raise DataError("augment 'resized_crop' is for image folders; use 'crop_flip', 'shift' or 'none' here")
        super().__init__(images, plan, device, memory_format)
        self.images, self.augment, self.chunk = images.to(device), augment, chunk

    def epoch(self, epoch: int, first_step: int = 0) -> Generator[tuple[Tensor, Tensor], None, None]:
        indices = self.plan.indices(epoch)[first_step:].to(self.device)
        varied = self.plan.training and self.augment != Augment()
        draws = draw(self.augment, self.samples, self.plan.seed, epoch).to(self.device) if varied else None
        for start in range(0, len(indices), self.chunk):
            slots = indices[start : start + self.chunk].flatten()
            samples = slots.clamp(min=0)  # an empty slot shows the first image and counts nothing: its label is -1
            pixels = self.images.images[samples]
            if draws is not None:
                pixels = crop_and_flip(pixels, draws[:, samples], self.augment.pad)
            labels = self.images.labels[samples].masked_fill_(slots < 0, -1)
            yield from zip(self.normalise(pixels).split(self.local_batch), labels.split(self.local_batch), strict=True)
