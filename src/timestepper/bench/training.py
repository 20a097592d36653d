"""One training step and one forward pass of a network, ready to be timed, as the engine runs them."""

import contextlib
import gc
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.bench.timing import seconds
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
        device = case.runtime.device
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        self.model = case.runtime.place(model.train())
        self.optimiser = optimisers.build(
            {"all": optimisers.ParameterGroup(self.model.parameters())}, lr=1e-3, momentum=0.9, weight_decay=1e-4
        )
        self.images, self.labels = case.inputs()
        self._step = case.runtime.graphed(self._update)
        with _fresh_cache() if case.runtime.compile else contextlib.nullcontext():
            self.first_seconds = seconds(self, device)
        self.peak_bytes = 0  # above what was there before the model was; 0 where not known
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            seconds(self, device)
            self.peak_bytes = torch.cuda.max_memory_allocated() - before
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


class Inference:
    """Calls run one forward pass without gradients on one fixed batch."""

    def __init__(self, model: nn.Module, case: Case):
        self._case = case
        self.model = case.runtime.place(model.eval())
        self._images, _ = case.inputs()
        self._forward = case.runtime.graphed(self._run)
        for _ in range(5):  # compiles, and records a CUDA graph after a few ordinary calls
            self()

    def __call__(self) -> Tensor:
        return self._forward(self._images)

    @torch.no_grad()
    def _run(self, images: Tensor) -> Tensor:
        with self._case.runtime.autocast():
            return self.model(images)


def forget() -> None:
    """Drop compiled code and cached memory, so that the next variant starts as the first one did."""
    torch._dynamo.reset()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def _fresh_cache() -> contextlib.AbstractContextManager:
    from torch._inductor.utils import fresh_cache  # takes a second, which only compiling needs

    return fresh_cache()
