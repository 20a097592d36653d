"""One training step and one forward pass of a network, ready to be timed, as the engine runs them."""

import contextlib
import gc
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.bench import peers
from timestepper.bench.timing import seconds
from timestepper.engine import optimiser as optimisers
from timestepper.engine.runtime import Runtime

MODES = ("eager", "graph", "compiled", "compiled+graph")


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    model: str
    batch: int
    device: torch.device
    precision: str
    channels_last: bool
    modes: tuple[str, ...]
    variants: tuple[str, ...]
    pixels: int
    classes: int
    rounds: int
    seconds: float

    def build(self, variant: str) -> nn.Module:
        return peers.build(variant, self.model, self.classes)

    def runtime(self, mode: str) -> Runtime:
        return Runtime(self.device, self.precision, "compiled" in mode, "graph" in mode, self.channels_last)

    def inputs(self) -> tuple[Tensor, Tensor]:
        images = torch.randn(self.batch, 3, self.pixels, self.pixels, device=self.device)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images, torch.randint(self.classes, (self.batch,), device=self.device)


class TrainingStep:
    """Calls run one step on one fixed batch. Building it runs the first step, which compiles, and measures memory.

    Nothing that an earlier compilation left on disk is used, so that the time of the first step can be compared.
    """

    def __init__(self, model: nn.Module, settings: Settings, runtime: Runtime):
        cuda = runtime.device.type == "cuda"
        before = torch.cuda.memory_allocated() if cuda else 0
        self.runtime, self.model = runtime, runtime.place(model.train())
        parameters = [{"params": self.model.parameters()}]
        self.optimiser = optimisers.build(parameters, lr=1e-3, momentum=0.9, weight_decay=1e-4)
        self.images, self.labels = settings.inputs()
        self._step = runtime.graphed(self._update)
        with contextlib.ExitStack() as caches:
            if runtime.compile:
                from torch._inductor.utils import fresh_cache  # takes a second, which only compiling needs

                caches.enter_context(fresh_cache())
            self.first_seconds = seconds(self, runtime.device)
        self.peak_bytes = 0  # above what was there before the model was; 0 where not known
        if cuda:
            torch.cuda.reset_peak_memory_stats()
            seconds(self, runtime.device)
            self.peak_bytes = torch.cuda.max_memory_allocated() - before
        for _ in range(3):  # a CUDA graph is recorded after a few ordinary steps
            self()

    def __call__(self) -> Tensor:
        return self._step(self.images, self.labels)

    def _update(self, images: Tensor, labels: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        with self.runtime.autocast():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimiser.step()
        return loss.detach()


class Inference:
    """Calls run one forward pass without gradients on one fixed batch."""

    def __init__(self, model: nn.Module, settings: Settings, runtime: Runtime):
        self.runtime, self.model = runtime, runtime.place(model.eval())
        self.images, _ = settings.inputs()
        self._forward = runtime.graphed(self._run)
        for _ in range(5):  # compiles, and records a CUDA graph after a few ordinary calls
            self()

    def __call__(self) -> Tensor:
        return self._forward(self.images)

    @torch.no_grad()
    def _run(self, images: Tensor) -> Tensor:
        with self.runtime.autocast():
            return self.model(images)


def forget() -> None:
    """Drop compiled code and cached memory, so that the next variant starts as the first one did."""
    torch._dynamo.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()
