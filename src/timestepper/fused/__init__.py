"""Controllers in a handful of kernels instead of hundreds: same step sizes, same gradients.

One kernel describes all convolutions of a network, a few more run the LSTM controllers of all its stages, and one
multiplies step sizes into the parameters of all batch norms. Used for float32 networks on CUDA where Triton is there;
elsewhere the plain PyTorch of ``controllers`` runs. Gradients of gradients are not supported: switch it off with
``net.controllers.fused = False``. Compiled networks see three operators (ops.py), others autograd functions (eager.py).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from timestepper.controllers.base import Controller, by_stage, in_one, in_transform
from timestepper.controllers.lstm import LSTM
from timestepper.errors import StepSizeError
from timestepper.fused import eager, ops

WIDEST = 256  # beyond this a stage's recurrence is better off with a matrix library


def fits(weights: list[Tensor], controllers: Sequence[Controller], insist: bool = False) -> bool:
    """Whether the kernels can run these weights and controllers; with ``insist`` an error says why not.

    Insisting also takes the operators where they have no kernels (on a CPU, in float64): they run their reference.
    """
    if insist:
        obstacle = _obstacle(weights, controllers)
        if obstacle is not None:
            raise StepSizeError(f"the fused controller cannot run here: {obstacle}; set net.controllers.fused = None")
        return True
    if not (ops.TRITON and weights[0].is_cuda and weights[0].dtype == torch.float32) or in_transform():
        return False
    if not torch.compiler.is_compiling() and not _whole(weights):
        return False
    kinds = tuple(type(controller) for controller in controllers)
    return _known(kinds, [*weights, *_parameters(controllers)], lambda: _obstacle(weights, controllers) is None)


def describe(weights: list[Tensor], gradient: bool = True) -> Tensor:
    """The descriptors of all stages in one vector; ``gradient=False`` stops the gradient at the weights."""
    shown = weights if gradient else [weight.detach() for weight in weights]
    return ops.describe(shown) if torch.compiler.is_compiling() else eager.describe(shown)


def step_sizes(described: Tensor, controllers: Sequence[Controller]) -> Tensor:
    """Step sizes of all stages in one vector, from what the controllers are shown of all stages in one vector."""
    shapes = [controller.shape for controller in controllers]
    if not all(type(controller) is LSTM and controller.shape.hidden <= WIDEST for controller in controllers):
        rows = by_stage(described, [(shape.sites, shape.descriptor) for shape in shapes])
        return in_one(controller(stage) for controller, stage in zip(controllers, rows, strict=True))
    numbers = [n for shape in shapes for n in (shape.sites, shape.descriptor, shape.channels, shape.hidden)]
    if not torch.compiler.is_compiling():
        return eager.lstm_steps(described, _parameters(controllers), numbers)
    steps, _ = ops.lstm_steps(described, _parameters(controllers), numbers)
    return steps


def scales(parameters: list[Tensor], steps: Tensor, insist: bool = False) -> bool:
    """Whether one kernel can multiply these parameters by their step sizes: all of them one number per channel."""

    def alike() -> bool:
        shaped = all(p.dim() == 1 and p.is_contiguous() and p.dtype == steps.dtype for p in parameters)
        return shaped and all(parameter.device == steps.device for parameter in parameters)

    if insist:
        return alike() and not in_transform()
    if not (ops.TRITON and steps.is_cuda and steps.dtype == torch.float32) or in_transform():
        return False
    return _known(("scales",), parameters, alike)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int]) -> tuple[Tensor, ...]:
    """Each parameter times its step sizes, which begin at its place in the vector of all step sizes."""
    if not torch.compiler.is_compiling():
        return eager.scale(parameters, steps, places)
    return ops.scale(parameters, steps, places).split([parameter.numel() for parameter in parameters])


_answers: OrderedDict[tuple, bool] = OrderedDict()


def _known(kind: tuple, tensors: list[Tensor], ask: Callable[[], bool]) -> bool:
    """The answer for these tensors, which is asked for once while they stay where they are."""
    if torch.compiler.is_compiling():
        return ask()
    key = (kind, *(tuple(map(look, tensors)) for look in (Tensor.data_ptr, Tensor.size, Tensor.stride)))
    if key not in _answers:
        _answers[key] = ask()
        while len(_answers) > 64:
            _answers.popitem(last=False)
    return _answers[key]


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
