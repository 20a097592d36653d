"""Error and loss on an evaluation set of static batches in which padded slots carry the label -1."""

from collections.abc import Callable, Generator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.engine.distributed import Group
from timestepper.engine.runtime import Runtime
from timestepper.engine.step import IGNORED


class Batches(Protocol):
    """What the engine asks of a loader."""

    def epoch(self, epoch: int, first_step: int = 0) -> Generator[tuple[Tensor, Tensor], None, None]:
        """This rank's batches of images and labels, as many on every rank; a function of the arguments alone."""


class Evaluation:
    """Evaluates one model over and over; keeps its CUDA graph between epochs."""

    def __init__(self, model: nn.Module, runtime: Runtime, group: Group):
        self._model = model
        self._runtime = runtime
        self._group = group
        self._totals = torch.zeros(4, dtype=torch.float64, device=runtime.device)
        self._add = runtime.graphed(self._add_batch, group.active)

    def steps(self, batches: Batches) -> Generator[torch.cuda.Event | None, None, None]:
        """Yield after each batch that was handed to the device; then the ``figures`` are those of the whole set.

        The last yield of a GPU is the event that its figures wait for.
        """
        self._group.broadcast(self._model.buffers())  # batch-norm statistics of rank 0 are everybody's
        self._totals.zero_()
        was_training = self._model.training
        self._model.eval()
        try:
            for images, labels in batches.epoch(0):
                self._add(images, labels)
                yield None
        finally:
            self._model.train(was_training)
        totals = self._group.sum(self._totals)
        if totals.is_cuda:
            yield torch.cuda.current_stream().record_event()
        loss, correct, among5, count = totals.tolist()
        errors = {"error": (count - correct) / count, "top5_error": (count - among5) / count}
        self.figures = {"loss": loss / count, **errors, "samples": int(count)}

    def run(self, batches: Batches, poll: Callable[[], None] = lambda: None) -> dict[str, float]:
        """All of it at once."""
        for _ in self.steps(batches):
            poll()
        return self.figures

    @torch.no_grad()
    def _add_batch(self, images: Tensor, labels: Tensor) -> Tensor:
        with self._runtime.autocast():
            logits = self._runtime.call(self._model, self._model, images)
        logits = logits.float()
        loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        best = logits.topk(min(5, logits.shape[1])).indices == labels.unsqueeze(1)
        values = (loss, best[:, 0].sum(), best.any(1).sum(), (labels != IGNORED).sum())
        self._totals.add_(torch.stack([value.double() for value in values]))
        return self._totals
