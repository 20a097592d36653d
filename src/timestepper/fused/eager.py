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
from timestepper.fused.tables import Known


def describe(weights: list[Tensor], of: Known | None = None) -> Tensor:
    """As :func:`ops.describe`."""
    return _Describe.apply(of, *weights)


def lstm_steps(described: Tensor, parameters: list[Tensor], shapes: list[int], of: Known | None = None) -> Tensor:
    """As :func:`ops.lstm_steps`, without what is there for its backward pass."""
    return _LSTMSteps.apply(of, shapes, described, *parameters)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int], of: Known | None = None) -> tuple[Tensor, ...]:
    """As :func:`ops.scale`, one tensor for each parameter."""
    return _Scale.apply(of, places, steps, *parameters)


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
    def forward(ctx, of: Known | None, *weights: Tensor) -> Tensor:
        ctx.shapes = tuple(map(Tensor.size, weights))
        return ops.run_describe([*weights], of)

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor):
        """Every input channel gets the same share: a view of one vector, the same number along the inputs."""
        inputs, views = _shares(ctx.shapes, gradient.device, gradient.dtype)
        shared = gradient / inputs
        wanted = zip(views, ctx.needs_input_grad[1:], strict=True)
        return None, *[shared.as_strided(*view) if needed else None for view, needed in wanted]


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
    def forward(ctx, of: Known | None, shapes: list[int], described: Tensor, *parameters: Tensor) -> Tensor:
        ctx.of, ctx.shapes = of, shapes
        steps, state = ops.run_lstm_steps(described, [*parameters], shapes, of)
        ctx.save_for_backward(described, steps, state, *parameters)
        return steps

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor):
        described, steps, state, *parameters = ctx.saved_tensors
        where = parameters, ctx.shapes, ctx.of
        flat, of_described = ops.run_lstm_steps_backward(gradient, steps, described, state, *where)
        _, _, needs_described, *needs = ctx.needs_input_grad
        parts = flat.split(list(map(Tensor.numel, parameters)))
        gradients = [p.view(w.shape) if n else None for p, w, n in zip(parts, parameters, needs, strict=True)]
        return None, None, of_described if needs_described else None, *gradients


class _Scale(Function):
    @staticmethod
    def forward(ctx, of: Known | None, places: list[int], steps: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.of, ctx.places, ctx.sizes = of, places, list(map(Tensor.numel, parameters))
        ctx.save_for_backward(steps, *parameters)
        return tuple(ops.run_scale([*parameters], steps, places, of).split(ctx.sizes))

    @staticmethod
    @_once
    def backward(ctx, *gradients: Tensor):
        steps, *parameters = ctx.saved_tensors
        flat, of_steps = ops.run_scale_backward(torch.cat(gradients), parameters, steps, ctx.places, ctx.of)
        _, _, needs_steps, *needs = ctx.needs_input_grad
        parts = [part if needed else None for part, needed in zip(flat.split(ctx.sizes), needs, strict=True)]
        return None, None, of_steps if needs_steps else None, *parts
