"""The operators of ops.py for networks that are not compiled: the same functions behind autograd functions.

An operator that PyTorch knows by a schema costs the host far more in eager mode than the kernels take. Here nothing
stands between the network and the launches.
"""

from collections.abc import Callable
from functools import lru_cache, wraps

import torch
from torch import Tensor
from torch.autograd import Function

from timestepper.errors import StepSizeError
from timestepper.fused import ops


def describe(weights: list[Tensor]) -> Tensor:
    """As :func:`ops.describe`."""
    return _Describe.apply(*weights)


def lstm_steps(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> Tensor:
    """As :func:`ops.lstm_steps`, without what is there for its backward pass."""
    return _LSTMSteps.apply(shapes, described, *parameters)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int]) -> tuple[Tensor, ...]:
    """As :func:`ops.scale`, one tensor for each parameter."""
    return _Scale.apply(places, steps, *parameters)


def _once(backward: Callable) -> Callable:
    """A gradient of these gradients is refused, where torch would sometimes leave a part of it out."""

    @wraps(backward)
    def checked(ctx, *gradients):
        if torch.is_grad_enabled():
            raise StepSizeError(
                "the fused controllers have no gradients of gradients (create_graph=True); "
                "set net.controllers.fused = False"
            )
        return backward(ctx, *gradients)

    return checked


class _Describe(Function):
    @staticmethod
    def forward(ctx, *weights: Tensor) -> Tensor:
        ctx.shapes = tuple(map(Tensor.size, weights))
        return ops.run_describe([*weights])

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor):
        """Every input channel gets the same share: a view of one vector, the same number along the inputs."""
        inputs, views = _shares(ctx.shapes, gradient.device, gradient.dtype)
        shared = gradient / inputs
        return tuple(
            shared.as_strided(*view) if needed else None
            for view, needed in zip(views, ctx.needs_input_grad, strict=True)
        )


@lru_cache(maxsize=64)
def _shares(shapes: tuple[torch.Size, ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, list[tuple]]:
    """For every descriptor how many inputs share it, and for every weight where its gradient lies."""
    counts, views, offset = [], [], 0
    for shape in shapes:
        results = shape.numel() // shape[1]
        counts += [float(shape[1])] * results
        strides = torch.empty((shape[0], *shape[2:]), device="meta").stride()
        views.append((shape, (strides[0], 0, *strides[1:]), offset))
        offset += results
    return torch.tensor(counts, dtype=dtype, device=device), views


class _LSTMSteps(Function):
    @staticmethod
    def forward(ctx, shapes: list[int], described: Tensor, *parameters: Tensor) -> Tensor:
        ctx.shapes = shapes
        steps, state = ops.run_lstm_steps(described, [*parameters], shapes)
        ctx.save_for_backward(described, steps, state, *parameters)
        return steps

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor):
        described, steps, state, *parameters = ctx.saved_tensors
        flat, of_described = ops.run_lstm_steps_backward(gradient, steps, described, state, parameters, ctx.shapes)
        _, needs_described, *needs = ctx.needs_input_grad
        parts = flat.split(list(map(Tensor.numel, parameters)))
        gradients = [p.view(w.shape) if n else None for p, w, n in zip(parts, parameters, needs, strict=True)]
        return None, of_described if needs_described else None, *gradients


class _Scale(Function):
    @staticmethod
    def forward(ctx, places: list[int], steps: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.places, ctx.sizes = places, list(map(Tensor.numel, parameters))
        ctx.save_for_backward(steps, *parameters)
        return tuple(ops.run_scale([*parameters], steps, places).split(ctx.sizes))

    @staticmethod
    @_once
    def backward(ctx, *gradients: Tensor):
        steps, *parameters = ctx.saved_tensors
        flat, of_steps = ops.run_scale_backward(torch.cat(gradients), parameters, steps, ctx.places)
        _, needs_steps, *needs = ctx.needs_input_grad
        parts = [part if needed else None for part, needed in zip(flat.split(ctx.sizes), needs, strict=True)]
        return None, of_steps if needs_steps else None, *parts
