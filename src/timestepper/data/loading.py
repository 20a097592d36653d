"""What every loader is, whatever its images are."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from timestepper.data.augment import Normaliser
from timestepper.data.dataset import Images
from timestepper.data.order import Plan


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
    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]: ...
