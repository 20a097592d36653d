"""Controllers in a handful of kernels instead of hundreds: same step sizes, same gradients.

One kernel describes all convolutions of a network, a few more run the LSTM controllers of all its stages, and one
multiplies step sizes into the parameters of all batch norms. Used for float32 networks on CUDA where Triton is there;
elsewhere the plain PyTorch of ``controllers`` runs. Gradients of gradients are not supported: switch it off with
``net.controllers.fused = False``. Compiled networks see three operators (ops.py), others autograd functions (eager.py).
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from timestepper.controllers.base import Controller, by_stage, in_one, in_transform
from timestepper.controllers.lstm import LSTM
from timestepper.errors import StepSizeError
from timestepper.kernels import eager, ops
from timestepper.kernels.tables import Known, known

WIDEST = 256  # beyond this a stage's recurrence is better off with a matrix library


def fits(weights: list[Tensor], controllers: Sequence[Controller], insist: bool = False) -> Known | None:
    """What is known of these weights and controllers, if the kernels can run them; else None.

    With ``insist`` an error says why not, and the operators are taken where they have no kernels too (on a CPU, in
    float64): they run their reference.
    """
    if insist:
        obstacle = _obstacle(weights, controllers)
        if obstacle is not None:
            raise StepSizeError(f"the fused controller cannot run here: {obstacle}; set net.controllers.fused = None")
    elif not _kernels(weights[0]) or in_transform() or not (torch.compiler.is_compiling() or _whole(weights)):
        return None
    kinds = tuple(type(controller) for controller in controllers)
    of = _known([*weights, *_parameters(controllers)])
    return of if insist or of.once(("fits", *kinds), lambda: _obstacle(weights, controllers) is None) else None


def describe(weights: list[Tensor], gradient: bool, of: Known) -> Tensor:
    """The descriptors of all stages in one vector; ``gradient=False`` stops the gradient at the weights."""
    shown = weights if gradient else [weight.detach() for weight in weights]
    return ops.describe(shown) if torch.compiler.is_compiling() else eager.describe(shown, of)


def step_sizes(described: Tensor, controllers: Sequence[Controller], of: Known) -> Tensor:
    """Step sizes of all stages in one vector, from what the controllers are shown of all stages in one vector."""
    shapes = [controller.shape for controller in controllers]
    if not all(type(controller) is LSTM and controller.shape.hidden <= WIDEST for controller in controllers):
        rows = by_stage(described, [(shape.sites, shape.descriptor) for shape in shapes])
        return in_one(controller(stage) for controller, stage in zip(controllers, rows, strict=True))
    numbers = [n for shape in shapes for n in (shape.sites, shape.descriptor, shape.channels, shape.hidden)]
    run = ops.lstm_steps if torch.compiler.is_compiling() else partial(eager.lstm_steps, of=of)
    steps, _ = run(described, _parameters(controllers), numbers)
    return steps


def scales(parameters: list[Tensor], steps: Tensor, insist: bool = False) -> Known | None:
    """What is known of these parameters, one number per channel each, if one kernel can multiply all; else None."""

    def alike() -> bool:
        shaped = all(p.dim() == 1 and p.is_contiguous() and p.dtype == steps.dtype for p in parameters)
        return shaped and all(parameter.device == steps.device for parameter in parameters)

    if in_transform() or not (insist or _kernels(steps)):
        return None
    of = _known(parameters)
    return of if of.once(("scales", steps.dtype, steps.device), alike) else None


def scale(parameters: list[Tensor], steps: Tensor, places: list[int], of: Known) -> Sequence[Tensor]:
    """Each parameter times its step sizes, which begin at its place in the vector of all step sizes."""
    if not torch.compiler.is_compiling():
        return eager.scale(parameters, steps, places, of)
    return ops.scale(parameters, steps, places).split([parameter.numel() for parameter in parameters])


def _known(tensors: list[Tensor]) -> Known:
    return Known() if torch.compiler.is_compiling() else known(tensors)  # which the compiler asks once


def _kernels(tensor: Tensor) -> bool:
    return ops.TRITON and tensor.is_cuda and tensor.dtype == torch.float32


def _whole(tensors: list[Tensor]) -> bool:
    """No part of something sharded: kernels read addresses."""
    return all(type(tensor) in (nn.Parameter, Tensor) for tensor in tensors)


def _obstacle(weights: list[Tensor], controllers: Sequence[Controller]) -> str | None:
    if not all(controller.reads_weights for controller in controllers):
        return "its controller reads no weights"
    if in_transform():
        return "a transform of torch.func is at work"
    if not torch.compiler.is_compiling() and not _whole(weights):
        return "a weight is sharded, or computed by a tensor class of its own"
    first, parameters = weights[0], _parameters(controllers)
    if first.dtype not in (torch.float32, torch.float64) or (first.is_cuda and first.dtype == torch.float64):
        return f"the network is in {first.dtype}, not in float32"
    if not all(tensor.dtype == first.dtype and tensor.device == first.device for tensor in weights + parameters):
        return "convolutions and controllers differ in precision or device"
    if not all(parameter.is_contiguous() for parameter in parameters) or not all(_regular(w) for w in weights):
        return "a parameter is not stored in a regular layout"
    return None


def _parameters(controllers: Sequence[Controller]) -> list[Tensor]:
    return [cast(Tensor, parameter) for controller in controllers for parameter in controller._parameters.values()]


def _regular(weight: Tensor) -> bool:
    """Contiguous or channels-last: the taps of a filter lie at equal distances."""
    if weight.dim() <= 3 or weight.shape[2:].numel() == 1:
        return True
    return weight.dim() == 4 and weight.stride(2) == weight.shape[3] * weight.stride(3)
