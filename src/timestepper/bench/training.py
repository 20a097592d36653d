"""One training step of a network, ready to be timed: forward, loss, backward and optimiser, as the engine runs them."""

import contextlib
import gc
import time
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.engine import optimiser as optimisers
from timestepper.engine.runtime import Runtime

MODES = ("eager", "graph", "compiled", "compiled+graph")


@dataclass(frozen=True)
class Case:
    """What is run: input shape, classes and how."""

    batch: int
    shape: tuple[int, ...]
    classes: int
    runtime: Runtime

    def inputs(self) -> tuple[Tensor, Tensor]:
        device = self.runtime.device
        images = torch.randn(self.batch, *self.shape, device=device)
        if self.runtime.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, torch.randint(self.classes, (self.batch,), device=device)


def runtime(mode: str, device: torch.device, precision: str, channels_last: bool) -> Runtime:
    """The engine's runtime for a mode; one line is printed for what is not possible."""
    return Runtime(
        device, precision, compile="compiled" in mode, cuda_graph="graph" in mode, channels_last=channels_last
    )


class TrainingStep:
    """Calls run one step on one fixed batch. Building it runs the first step, which compiles, and measures memory.

    Nothing that an earlier compilation left on disk is used, so that the time of the first step can be compared.
    """

    def __init__(self, model: nn.Module, case: Case):
        self.case = case
        self.before = _allocated(case.runtime.device)
        self.model = case.runtime.place(model.train())
        self.optimiser = optimisers.build(
            {"all": optimisers.Group(self.model.parameters())}, lr=1e-3, momentum=0.9, weight_decay=1e-4
        )
        self.images, self.labels = case.inputs()
        self._step = case.runtime.graphed(self._update)
        start = time.perf_counter()
        with _fresh_cache() if case.runtime.compile else contextlib.nullcontext():
            self()
            _synchronize(case.runtime.device)
        self.first_seconds = time.perf_counter() - start
        self.peak_bytes = self._measure_peak()
        for _ in range(3):  # a CUDA graph is recorded after a few ordinary steps
            self()

    def __call__(self) -> Tensor:
        return self._step(self.images, self.labels)

    def _update(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with self.case.runtime.autocast():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimiser.step()
        return loss.detach()

    def _measure_peak(self) -> int:
        """Bytes at the peak of an ordinary step, above what was there before the model was; 0 where not known."""
        if self.case.runtime.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats()
        self()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - self.before

    def kernels(self) -> tuple[Counter, Counter]:
        """Kernels of one step: how often each is launched, and microseconds of each by name."""
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            self()
            torch.cuda.synchronize()
        counts: Counter = Counter()
        microseconds: Counter = Counter()
        for event in profile.events():
            if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("## "):
                counts[event.name] += 1
                microseconds[event.name] += event.time_range.elapsed_us()
        return counts, microseconds


def forget() -> None:
    """Drop compiled code and cached memory, so that the next variant starts as the first one did."""
    torch._dynamo.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _fresh_cache() -> contextlib.AbstractContextManager:
    from torch._inductor.utils import fresh_cache  # takes a second, which only compiling needs

    return fresh_cache()


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
