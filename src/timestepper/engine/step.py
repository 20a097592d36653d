"""One update: forward, backward, the check that all is finite, and the optimiser, without a question to the host."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.engine.distributed import Group, adding
from timestepper.engine.optimiser import parameters_of
from timestepper.engine.runtime import Runtime

IGNORED = -1  # label of a padded slot


@dataclass(frozen=True)
class Row:
    """What one rank reports of one update. The order of the fields is the order in the tensor."""

    bad: float  # 1 where loss or gradient is not finite
    loss: float  # mean over the rank's samples
    norm: float  # of the gradient
    correct: float
    count: float
    stop: float = 0.0  # number of the signal that this rank received
    save: float = 0.0  # 1 where this rank asks for a checkpoint


class UpdateStep:
    """The update as a function of images, labels and this rank's requests; returns the rows of all ranks, (world, 7).

    With ``accumulate`` above 1 the batch goes through the network in so many parts of one size, whose gradients add up
    to those of the mean over the whole batch: less memory for the same update. The ranks exchange them once, with the
    last part. Controllers compute their step sizes anew for each part, from the same weights.

    Once a loss or gradient is not finite on any rank, this and all later updates leave weights and momentum as they
    are, on every rank: the host may learn of it late and nothing is lost.
    """

    def __init__(
        self,
        model: nn.Module,
        inner: nn.Module,
        optimiser: torch.optim.Optimizer,
        runtime: Runtime,
        group: Group,
        label_smoothing: float = 0.0,
        accumulate: int = 1,
    ):
        self._model = model
        self._inner = inner  # the model without the wrapper that averages gradients
        self._optimiser = optimiser
        self._runtime = runtime
        self._group = group
        self._label_smoothing = label_smoothing
        self._accumulate = accumulate
        self._parameters = parameters_of(optimiser)
        self._bad = torch.zeros((), device=runtime.device)
        # The fused kernels of torch.optim read these two attributes, as its gradient scaler sets them.
        optimiser.found_inf = self._bad  # type: ignore[attr-defined]
        optimiser.grad_scale = None  # type: ignore[attr-defined]

    def __call__(self, images: Tensor, labels: Tensor, requests: Tensor) -> Tensor:
        self._optimiser.zero_grad(set_to_none=True)
        parts = self._accumulate
        counts = (labels != IGNORED).view(parts, -1).sum(1)
        shares = counts / counts.sum()
        sums = torch.zeros(2, device=self._runtime.device)
        for number, part in enumerate(zip(images.chunk(parts), labels.chunk(parts), shares, strict=True), 1):
            with adding(self._model, more=number < parts):
                sums += self._add_gradients(*part)
        loss, correct = sums
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        bad = ~(loss.isfinite() & norm.isfinite())
        row = torch.stack([value.float() for value in (bad, loss, norm, correct, counts.sum())])
        rows = self._group.gather(torch.cat([row, requests]))
        self._bad.copy_(torch.maximum(self._bad, rows[:, 0].max()))
        self._optimiser.step()
        return rows

    def _add_gradients(self, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        """Add the gradients of a part of the batch; what it contributes to the mean loss, and its hits."""
        with self._runtime.autocast():
            logits = self._runtime.call(self._model, self._inner, images)
        loss = F.cross_entropy(logits.float(), labels, ignore_index=IGNORED, label_smoothing=self._label_smoothing)
        loss = loss * share  # 1.0 where the batch is one part, which changes no bit
        loss.backward()
        return torch.stack([loss.detach(), (logits.detach().argmax(1) == labels).sum()])
