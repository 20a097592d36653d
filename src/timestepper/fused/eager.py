"""The operators of ops.py for networks that are not compiled: the same kernels behind autograd functions.

An operator that PyTorch knows by a schema costs the host hundreds of microseconds a call in eager mode, more than the
kernels take. Here nothing stands between the network and the launches, and the tables that the kernels read are kept.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from timestepper.fused import ops, reference
from timestepper.fused.layout import layout


def describe(weights: list[Tensor]) -> Tensor:
    """As :func:`ops.describe`."""
    return _Describe.apply(*weights)


def lstm_steps(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> Tensor:
    """As :func:`ops.lstm_steps`, without what is there for its backward pass."""
    return _LSTMSteps.apply(tuple(shapes), described, *parameters)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int]) -> list[Tensor]:
    """As :func:`ops.scale`, one tensor for each parameter."""
    return [*_Scale.apply(tuple(places), steps, *parameters)]


class _Describe(Function):
    @staticmethod
    def forward(ctx, *weights: Tensor) -> Tensor:
        ctx.shapes = tuple(weight.shape for weight in weights)
        if not ops.by_kernel(weights[0]):
            return reference.describe([*weights])
        from timestepper.fused import launch

        with torch.cuda.device_of(weights[0]):
            return launch.describe([*weights], keep=True)

    @staticmethod
    @once_differentiable
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
    def forward(ctx, shapes: tuple[int, ...], described: Tensor, *parameters: Tensor) -> Tensor:
        where = ctx.where = layout(shapes)
        if not ops.by_kernel(described):
            steps, state = reference.forward(described, [*parameters], where)
            table = described.new_empty(0, dtype=torch.int64)
        else:
            from timestepper.fused import launch

            with torch.cuda.device_of(described):
                steps, state, table = launch.forward(described, [*parameters], where, keep=True)
        ctx.save_for_backward(described, steps, state, table, *parameters)
        return steps

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        described, steps, state, table, *parameters = ctx.saved_tensors
        flat, of_described = ops.lstm_gradients(gradient, steps, described, state, table, parameters, ctx.where)
        _, needs_described, *needs = ctx.needs_input_grad
        parts = flat.split(ctx.where.parameter_sizes)
        gradients = [p.view(w.shape) if n else None for p, w, n in zip(parts, parameters, needs, strict=True)]
        return None, of_described if needs_described else None, *gradients


class _Scale(Function):
    @staticmethod
    def forward(ctx, places: tuple[int, ...], steps: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.places, ctx.sizes = [*places], [parameter.numel() for parameter in parameters]
        if not ops.by_kernel(steps):
            scaled = reference.scale([*parameters], steps, ctx.places)
            table = steps.new_empty(0, dtype=torch.int64)
        else:
            from timestepper.fused import launch

            with torch.cuda.device_of(steps):
                scaled, table = launch.scale([*parameters], steps, ctx.places, keep=True)
        ctx.save_for_backward(steps, table, *parameters)
        return tuple(scaled.split(ctx.sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        steps, table, *parameters = ctx.saved_tensors
        flat, of_steps = ops.scale_gradients(torch.cat(gradients), parameters, steps, table, ctx.places)
        _, needs_steps, *needs = ctx.needs_input_grad
        parts = [part if needed else None for part, needed in zip(flat.split(ctx.sizes), needs, strict=True)]
        return None, of_steps if needs_steps else None, *parts
