"""The operators of ops.py with their gradients.

A network that is not compiled comes here directly and goes on to the launches: an operator that PyTorch knows by a
schema costs the host far more than the kernels take. A compiled one comes here while it is traced, through the
operators, without knowing where its tensors will be (``of`` is None), and is left with operators.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from timestepper.errors import StepSizeError
from timestepper.kernels import ops
from timestepper.kernels.tables import Known


def _run(name: str, of: Known | None, *arguments: Any) -> Any:
    if of is None:
        return getattr(torch.ops.timestepper, f"{name}_run")(*arguments)
    return getattr(ops, f"run_{name}")(*arguments, of)


def describe(weights: list[Tensor], of: Known | None = None) -> Tensor:
    """As :func:`ops.describe`."""
    return _Describe.apply(of, *weights)


def lstm_steps(
    described: Tensor, parameters: list[Tensor], shapes: list[int], of: Known | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`ops.lstm_steps`."""
    return _LSTMSteps.apply(of, shapes, described, *parameters)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int], of: Known) -> tuple[Tensor, ...]:
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
        ctx.of, ctx.shapes = of, tuple(map(Tensor.size, weights))
        return _run("describe", of, [*weights])

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor):
        """Every input channel gets the same share: the same number along the inputs."""
        _, *wanted = ctx.needs_input_grad
        if ctx.of is None:  # plain operations, which fuse into the sum with the layer's own part
            parts = gradient.split([shape.numel() // shape[1] for shape in ctx.shapes])
            return None, *[
                (part / shape[1]).view(shape[0], 1, *shape[2:]).expand(shape) if needed else None
                for part, shape, needed in zip(parts, ctx.shapes, wanted, strict=True)
            ]
        inputs, views = _shares(ctx.shapes, gradient.device, gradient.dtype)
        shared = gradient / inputs
        return None, *[shared.as_strided(*view) if n else None for view, n in zip(views, wanted, strict=True)]


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
    def forward(ctx, of: Known | None, shapes: list[int], described: Tensor, *parameters: Tensor):
        ctx.of, ctx.shapes = of, shapes
        steps, state = _run("lstm_steps", of, described, [*parameters], shapes)
        ctx.mark_non_differentiable(state)
        ctx.save_for_backward(described, steps, state, *parameters)
        return steps, state

    @staticmethod
    @_once
    def backward(ctx, gradient: Tensor, _):
        described, steps, state, *parameters = ctx.saved_tensors
        arguments = gradient, steps, described, state, parameters, ctx.shapes
        flat, of_described = _run("lstm_steps_backward", ctx.of, *arguments)
        _, _, needs_described, *needs = ctx.needs_input_grad
        parts = flat.split(list(map(Tensor.numel, parameters)))
        gradients = [p.view(w.shape) if n else None for p, w, n in zip(parts, parameters, needs, strict=True)]
        return None, None, of_described if needs_described else None, *gradients


class _Scale(Function):
    """The products: one tensor for each parameter, or, for the operator, all in one vector."""

    @staticmethod
    def forward(ctx, of: Known | None, places: list[int], steps: Tensor, *parameters: Tensor):
        ctx.of, ctx.places, ctx.sizes = of, places, list(map(Tensor.numel, parameters))
        ctx.save_for_backward(steps, *parameters)
        products = _run("scale", of, [*parameters], steps, places)
        return products if of is None else tuple(products.split(ctx.sizes))

    @staticmethod
    @_once
    def backward(ctx, *gradients: Tensor):
        steps, *parameters = ctx.saved_tensors
        gradient = gradients[0] if ctx.of is None else torch.cat(gradients)
        flat, of_steps = _run("scale_backward", ctx.of, gradient, parameters, steps, ctx.places)
        _, _, needs_steps, *needs = ctx.needs_input_grad
        parts = [part if needed else None for part, needed in zip(flat.split(ctx.sizes), needs, strict=True)]
        return None, None, of_steps if needs_steps else None, *parts


ops.with_gradient(ops.describe, describe)
ops.with_gradient(ops.lstm_steps, lstm_steps)
ops.with_gradient(ops.scale, lambda parameters, steps, places: _Scale.apply(None, places, steps, *parameters))
