"""The floor: the fewest bytes and operations of a training step, and the time that a device needs for them at least.

What must move: every convolution and linear layer reads its input and weight and writes its output; on the way back it
reads the gradient of its output, its input and its weight, and writes the gradient of its input. The optimiser reads
weight, gradient and momentum and writes weight and momentum; so a weight's gradient moves once. All else
(normalisation, activations, sums, the controller's arithmetic) is taken as done on the way, without a byte of its own.
No implementation moves less without computing features again.
"""

import copy
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from timestepper.api import detach, is_attached
from timestepper.bench.timing import seconds

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@dataclass(frozen=True)
class Floor:
    """Of one training step; a multiplication and an addition are two operations."""

    features: int  # bytes of features and their gradients
    weights: int  # bytes of weights, their gradients and the optimiser
    operations: int

    @property
    def bytes(self) -> int:
        return self.features + self.weights

    def milliseconds(self, ceilings: "Ceilings") -> float:
        """The larger of both times: no version runs faster."""
        return 1000 * max(self.bytes / ceilings.bytes_per_s, self.operations / ceilings.operations_per_s)


@dataclass(frozen=True)
class Ceilings:
    """What the device reached in this run: a large copy, bytes read and written; a large matrix product."""

    bytes_per_s: float
    operations_per_s: float


def training_floor(model: nn.Module, batch: int, shape: tuple[int, ...], feature_bytes: int) -> Floor:
    """Counted on the meta device, so nothing is computed. ``feature_bytes``: of one number, 2 in bf16, 4 in float32."""
    network = copy.deepcopy(model).to("meta").train()
    if is_attached(network):
        detach(network)
    images = torch.empty(batch, *shape, device="meta")
    moved: list[int] = []
    first: list[Tensor] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        source = inputs[0].numel()
        back = 0 if not first else source  # the gradient of the images is not needed
        first.append(output)
        # forward: input, output; backward: output's gradient, input, input's gradient
        moved.append(source + output.numel() + output.numel() + source + back)

    hooks = [layer.register_forward_hook(count) for layer in network.modules() if isinstance(layer, _LAYERS)]
    with FlopCounterMode(display=False) as counter:
        network(images).sum().backward()
    for hook in hooks:
        hook.remove()
    described = [layer.weight.numel() for layer in network.modules() if isinstance(layer, _LAYERS)]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # layers: weight forward and backward in the features' precision; optimiser: five numbers in float32
    weights = 2 * sum(described) * feature_bytes + 5 * parameters * 4
    return Floor(sum(moved) * feature_bytes, weights, counter.get_total_flops())


def measure_ceilings(device: torch.device, dtype: torch.dtype) -> Ceilings:
    """A copy several times the size of any cache, and a square product, on random numbers."""
    large = device.type == "cuda"
    source = torch.rand(2**28 if large else 2**24, device=device)
    target = torch.empty_like(source)
    size = 8192 if large else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    copied = _usual_seconds(lambda: target.copy_(source), device)
    multiplied = _usual_seconds(lambda: a @ b, device)
    return Ceilings(2 * source.numel() * 4 / copied, 2 * size**3 / multiplied)


def _usual_seconds(call: Callable[[], object], device: torch.device) -> float:
    """The median of ten calls, after two that warm up."""
    return statistics.median([seconds(call, device) for _ in range(12)][2:])
