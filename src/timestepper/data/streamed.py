"""Loader for image files: decoded by the GPU or by worker processes, normalised on the device."""

from collections.abc import Generator, Iterable
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from timestepper.data.augment import Augment
from timestepper.data.dataset import FolderImages
from timestepper.data.decode import read_sample, refuse_bombs
from timestepper.data.loading import Loader
from timestepper.data.on_gpu import ROOM, GpuReader, gpu_decodes
from timestepper.data.order import Plan, mix
from timestepper.data.windows import View, Windows
from timestepper.data.workers import Sample, Workers
from timestepper.errors import DataError


class StreamedLoader(Loader):
    """Any number of workers gives the same batches, because each sample brings its own seed.

    `decode`: `cpu`, `gpu`, or `auto`, the GPU if the network trains on one that can and most files are JPEGs.
    """

    def __init__(
        self,
        images: FolderImages,
        plan: Plan,
        augment: Augment,
        device: torch.device,
        memory_format: torch.memory_format = torch.contiguous_format,
        workers: int = 0,
        decode: str = "cpu",
    ):
        if augment.pad:
            raise DataError("augment with pad is for images held in memory; use 'resized_crop' or 'none' here")
        super().__init__(images, plan, device, memory_format)
        self.images, self.workers = images, workers
        varied = augment if plan.training else Augment()
        self.view = View(images.size, images.resize, varied.resized_crop, varied.flip)
        self._gpu = GpuReader(self.view, device) if gpu_decodes(images, device, decode) else None
        self._processes: Workers | None = None

    def epoch(self, epoch: int, first_step: int = 0) -> Generator[tuple[Tensor, Tensor], None, None]:
        refuse_bombs()
        indices = self.plan.indices(epoch)[first_step:]
        labels = self.images.labels[indices.clamp(min=0)].masked_fill_(indices < 0, -1).to(self.device)
        jobs = (self.job(epoch, samples) for samples in indices.tolist())
        with closing(self.batches(jobs)) as batches:
            yield from zip(batches, labels, strict=True)

    def job(self, epoch: int, samples: list[int]) -> list[Sample]:
        paths, seed = self.images.paths, self.plan.seed
        return [(paths[sample], mix("augment", seed, epoch, sample)) if sample >= 0 else None for sample in samples]

    def batches(self, jobs: Iterable[list[Sample]]) -> Generator[Tensor, None, None]:
        if self._gpu:
            made = self._gpu.batches(self.processes(), jobs)
        else:
            made = self.by_workers(jobs) if self.workers else self.by_itself(jobs)
        with closing(made):
            for pixels in made:
                if self.device.type == "cuda" and not pixels.is_cuda:
                    pixels = pixels.pin_memory()
                yield self.normalise(pixels.to(self.device, non_blocking=True))

    def processes(self) -> Workers:
        """The processes of the epoch before, where they live. Those that only read are needed for a GPU in any case."""
        if self._processes is None or not self._processes.close.alive:
            count, room = (max(self.workers, 1), ROOM) if self._gpu else (self.workers, 0)
            self._processes = Workers(count, self.view, self.local_batch, room)
        return self._processes

    def by_workers(self, jobs: Iterable[list[Sample]]) -> Generator[Tensor, None, None]:
        processes = self.processes()
        with closing(processes.batches(jobs)) as batches:
            for _, places in batches:
                yield torch.from_numpy(processes.memory.pixels[places])

    def by_itself(self, jobs: Iterable[list[Sample]]) -> Generator[Tensor, None, None]:
        windows = Windows(self.view)
        for job in jobs:
            pixels = np.zeros((len(job), self.view.size, self.view.size, 3), np.uint8)
            for slot, sample in enumerate(job):
                if sample is not None:
                    pixels[slot] = read_sample(*sample, windows)
            yield torch.from_numpy(pixels)
