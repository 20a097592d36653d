"""The floor: the fewest bytes and operations of a training step, and the time that a device needs for them at least.

What must move: every convolution and linear layer reads its input and weight and writes its output; on the way back it
reads the gradient of its output, its input and its weight, and writes the gradient of its input. The optimiser reads
weight, gradient and momentum and writes weight and momentum; so a weight's gradient moves once. All else
(normalisation, activations, sums, the controller's arithmetic) is taken as done on the way, without a byte of its own.
No implementation moves less without computing features again.
"""

import copy
import statistics

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from timestepper.bench.timing import seconds

_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


def training_floor(model: nn.Module, batch: int, shape: tuple[int, ...], feature_bytes: int) -> dict[str, int]:
    """Bytes of ``features`` and of ``weights``, each with its gradients, and ``operations`` of one step.

    A multiplication and an addition are two operations. Counted on the meta device, so nothing is computed.
    ``feature_bytes``: of one number, 2 in bf16, 4 in float32.
    """
    network = copy.deepcopy(model).to("meta").train()
    moved: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        source = inputs[0].numel()
        back = source if moved else 0  # the gradient of the images is not needed
        # forward: input, output; backward: output's gradient, input, input's gradient
        moved.append(source + output.numel() + output.numel() + source + back)

    layers = [layer for layer in network.modules() if isinstance(layer, _LAYERS)]
    for layer in layers:
        layer.register_forward_hook(count)
    with FlopCounterMode(display=False) as counter:
        network(torch.empty(batch, *shape, device="meta")).sum().backward()
    # layers: weight forward and backward in the features' precision; optimiser: five numbers in float32
    weights = 2 * feature_bytes * sum(layer.weight.numel() for layer in layers)
    weights += 5 * 4 * sum(parameter.numel() for parameter in model.parameters())
    return {"features": feature_bytes * sum(moved), "weights": weights, "operations": counter.get_total_flops()}


def ceilings(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """What the device reaches in this run: a copy larger than any cache, bytes read and written; a square product."""
    large = device.type == "cuda"
    source = torch.rand(2**28 if large else 2**24, device=device)
    target = torch.empty_like(source)
    size = 8192 if large else 1024
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    calls = (lambda: target.copy_(source), lambda: a @ b)
    # the median of ten calls, after two that warm up
    copied, multiplied = (statistics.median([seconds(call, device) for _ in range(12)][2:]) for call in calls)
    return {"bytes_per_s": 2 * source.numel() * 4 / copied, "operations_per_s": 2 * size**3 / multiplied}


def milliseconds(step: dict[str, int], reached: dict[str, float]) -> float:
    """The larger of both times: no version runs faster."""
    moving = (step["features"] + step["weights"]) / reached["bytes_per_s"]
    return 1000 * max(moving, step["operations"] / reached["operations_per_s"])
