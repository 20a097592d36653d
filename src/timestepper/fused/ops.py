"""The operators that PyTorch sees: opaque to ``torch.compile``, so that neither graph nor compile time grows.

``timestepper::describe``, ``timestepper::lstm_steps`` and ``timestepper::scale`` with their gradients. On CUDA (and
under Triton's interpreter) they launch kernels; elsewhere they run the reference, which is how the wiring itself is
tested in float64.
"""

import importlib.util
import os

import torch
from torch import Tensor

from timestepper.fused import reference
from timestepper.fused.layout import MATRICES, SCALE_WIDTH, WIDTH, Layout, layout

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def by_kernel(tensor: Tensor) -> bool:
    return tensor.is_cuda or (INTERPRETED and tensor.dtype == torch.float32)


# -- descriptors -------------------------------------------------------------------------------------------------------


@torch.library.custom_op("timestepper::describe", mutates_args=())
def describe(weights: list[Tensor]) -> Tensor:
    """Each convolution weight averaged over its inputs and flattened, all in one vector."""
    if not by_kernel(weights[0]):
        return reference.describe(weights)
    from timestepper.fused import launch

    with torch.cuda.device_of(weights[0]):
        return launch.describe(weights)


@describe.register_fake
def _(weights: list[Tensor]) -> Tensor:
    return weights[0].new_empty(sum(weight.numel() // weight.shape[1] for weight in weights))


def _describe_context(ctx, inputs, output) -> None:
    ctx.shapes = [weight.shape for weight in inputs[0]]


def _describe_backward(ctx, gradient: Tensor):
    """Every input channel gets the same share; plain operations, which fuse into the sum with the layer's own part."""
    parts = gradient.split([shape.numel() // shape[1] for shape in ctx.shapes])
    wanted = ctx.needs_input_grad[0]
    return [
        (part / shape[1]).view(shape[0], 1, *shape[2:]).expand(shape) if needed else None
        for part, shape, needed in zip(parts, ctx.shapes, wanted, strict=True)
    ]


describe.register_autograd(_describe_backward, setup_context=_describe_context)


# -- the LSTM controllers of all stages --------------------------------------------------------------------------------


@torch.library.custom_op("timestepper::lstm_steps", mutates_args=())
def lstm_steps(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Step sizes of all stages in one vector; then the state and the table that the backward pass reads."""
    where = layout(tuple(shapes))
    if not by_kernel(described):
        return *reference.forward(described, parameters, where), described.new_empty(0, dtype=torch.int64)
    from timestepper.fused import launch

    with torch.cuda.device_of(described):
        return launch.forward(described, parameters, where)


@lstm_steps.register_fake
def _(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    where = layout(tuple(shapes))
    return (
        described.new_empty(where.steps[-1]),
        described.new_empty(where.state[-1]),
        described.new_empty((MATRICES * len(where.shapes), WIDTH) if by_kernel(described) else 0, dtype=torch.int64),
    )


@torch.library.custom_op("timestepper::lstm_steps_backward", mutates_args=())
def lstm_steps_backward(
    gradient: Tensor,
    steps: Tensor,
    described: Tensor,
    state: Tensor,
    table: Tensor,
    parameters: list[Tensor],
    shapes: list[int],
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the descriptors."""
    return lstm_gradients(gradient, steps, described, state, table, parameters, layout(tuple(shapes)))


def lstm_gradients(
    gradient: Tensor,
    steps: Tensor,
    described: Tensor,
    state: Tensor,
    table: Tensor,
    parameters: list[Tensor],
    where: Layout,
) -> tuple[Tensor, Tensor]:
    if not by_kernel(described):
        return reference.backward(gradient, steps, described, state, parameters, where)
    from timestepper.fused import launch

    with torch.cuda.device_of(described):
        return launch.backward(gradient.contiguous(), steps, described, state, table, where)


@lstm_steps_backward.register_fake
def _(gradient, steps, described, state, table, parameters, shapes) -> tuple[Tensor, Tensor]:
    return described.new_empty(layout(tuple(shapes)).parameters[-1]), torch.empty_like(described)


def _lstm_context(ctx, inputs, output) -> None:
    described, parameters, ctx.where = inputs
    steps, state, table = output
    ctx.mark_non_differentiable(state, table)
    ctx.set_materialize_grads(False)
    # The table holds the parameters' addresses, so the parameters are kept and watched for changes like any operand.
    ctx.save_for_backward(described, steps, state, table, *parameters)


def _lstm_backward(ctx, gradient: Tensor | None, *_):
    described, steps, state, table, *parameters = ctx.saved_tensors
    if gradient is None:
        return None, [None] * len(parameters), None
    flat, described_gradient = lstm_steps_backward(gradient, steps, described, state, table, parameters, ctx.where)
    parts = flat.split([parameter.numel() for parameter in parameters])
    gradients = [
        part.view_as(parameter) if needed else None
        for part, parameter, needed in zip(parts, parameters, ctx.needs_input_grad[1], strict=True)
    ]
    return described_gradient if ctx.needs_input_grad[0] else None, gradients, None


lstm_steps.register_autograd(_lstm_backward, setup_context=_lstm_context)


# -- step sizes into parameters ----------------------------------------------------------------------------------------


@torch.library.custom_op("timestepper::scale", mutates_args=())
def scale(parameters: list[Tensor], steps: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
    """Each parameter times its step sizes, which begin at its place in ``steps``, all products in one vector; then the
    table that the backward pass reads.

    Opaque to the compiler on purpose: it would carry the product into the pass over the features, which reads the
    parameters once per element and would then read and multiply the step sizes there, too.
    """
    if not by_kernel(steps):
        return reference.scale(parameters, steps, places), steps.new_empty(0, dtype=torch.int64)
    from timestepper.fused import launch

    with torch.cuda.device_of(steps):
        return launch.scale(parameters, steps, places)


@scale.register_fake
def _(parameters: list[Tensor], steps: Tensor, places: list[int]) -> tuple[Tensor, Tensor]:
    rows = (len(set(places)) + len(places), SCALE_WIDTH)
    return (
        steps.new_empty(sum(parameter.numel() for parameter in parameters)),
        steps.new_empty(rows if by_kernel(steps) else 0, dtype=torch.int64),
    )


@torch.library.custom_op("timestepper::scale_backward", mutates_args=())
def scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, table: Tensor, places: list[int]
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the step sizes."""
    return scale_gradients(gradient, parameters, steps, table, places)


def scale_gradients(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, table: Tensor, places: list[int]
) -> tuple[Tensor, Tensor]:
    if not by_kernel(steps):
        return reference.scale_backward(gradient, parameters, steps, places)
    from timestepper.fused import launch

    with torch.cuda.device_of(steps):
        return launch.scale_backward(gradient.contiguous(), parameters, steps, table, places)


@scale_backward.register_fake
def _(gradient, parameters, steps, table, places) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gradient, memory_format=torch.contiguous_format), torch.empty_like(steps)


def _scale_context(ctx, inputs, output) -> None:
    parameters, steps, ctx.places = inputs
    _, table = output
    ctx.mark_non_differentiable(table)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(steps, table, *parameters)


def _scale_backward(ctx, gradient: Tensor | None, _):
    steps, table, *parameters = ctx.saved_tensors
    if gradient is None:
        return [None] * len(parameters), None, None
    flat, step_gradient = scale_backward(gradient, parameters, steps, table, ctx.places)
    parts = flat.split([parameter.numel() for parameter in parameters])
    gradients = [part if needed else None for part, needed in zip(parts, ctx.needs_input_grad[0], strict=True)]
    return gradients, step_gradient if ctx.needs_input_grad[1] else None, None


scale.register_autograd(_scale_backward, setup_context=_scale_context)
