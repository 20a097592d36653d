"""The operators that PyTorch sees: opaque to ``torch.compile``, so that neither graph nor compile time grows.

``timestepper::describe``, ``timestepper::lstm_steps`` and ``timestepper::scale`` with their gradients. On CUDA (and
under Triton's interpreter) they launch kernels; elsewhere they run the reference, which is how the wiring itself is
tested in float64. Who knows where the tensors are says so (``of``) and saves looking at each of them. Defined by their
schemas and not by ``torch.library.custom_op``, which looks at every tensor of every call for aliases and takes longer
for it than the kernels.
"""

import importlib.util
import os
from collections.abc import Callable

import torch
from torch import Tensor

from timestepper.fused import reference
from timestepper.fused.layout import layout
from timestepper.fused.tables import Known, known

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def by_kernel(tensor: Tensor) -> bool:
    return tensor.is_cuda or (INTERPRETED and tensor.dtype == torch.float32)


def _refuse(ctx, *gradients):
    raise RuntimeError(
        "lstm_steps_backward and scale_backward have no gradients themselves; set net.controllers.fused = False"
    )


def _operator(schema: str) -> Callable[[Callable], Callable]:
    """Register a function as an operator; what replaces it calls the operator."""
    name = f"timestepper::{schema.partition('(')[0]}"

    def register(function: Callable) -> Callable:
        torch.library.define(name, schema.removeprefix(name.partition("::")[2]))
        torch.library.impl(name, "default", function)
        return getattr(torch.ops.timestepper, name.partition("::")[2]).default

    return register


# -- descriptors -------------------------------------------------------------------------------------------------------


def run_describe(weights: list[Tensor], of: Known | None = None) -> Tensor:
    """Each convolution weight averaged over its inputs and flattened, all in one vector."""
    if not by_kernel(weights[0]):
        return reference.describe(weights)
    from timestepper.fused import launch

    with torch.cuda.device_of(weights[0]):
        return launch.describe(weights, of or known(weights))


describe = _operator("describe(Tensor[] weights) -> Tensor")(run_describe)


@torch.library.register_fake("timestepper::describe")
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


torch.library.register_autograd("timestepper::describe", _describe_backward, setup_context=_describe_context)


# -- the LSTM controllers of all stages --------------------------------------------------------------------------------


def run_lstm_steps(
    described: Tensor, parameters: list[Tensor], shapes: list[int], of: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Step sizes of all stages in one vector; then the state that the backward pass reads."""
    where = layout(tuple(shapes))
    if not by_kernel(described):
        return reference.forward(described, parameters, where)
    from timestepper.fused import launch

    with torch.cuda.device_of(described):
        return launch.forward(described, parameters, where, of or known(parameters))


lstm_steps = _operator("lstm_steps(Tensor described, Tensor[] parameters, int[] shapes) -> (Tensor, Tensor)")(
    run_lstm_steps
)


@torch.library.register_fake("timestepper::lstm_steps")
def _(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> tuple[Tensor, Tensor]:
    where = layout(tuple(shapes))
    return described.new_empty(where.steps[-1]), described.new_empty(where.state[-1])


def run_lstm_steps_backward(
    gradient: Tensor,
    steps: Tensor,
    described: Tensor,
    state: Tensor,
    parameters: list[Tensor],
    shapes: list[int],
    of: Known | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the descriptors."""
    where = layout(tuple(shapes))
    if not by_kernel(described):
        return reference.backward(gradient, steps, described, state, parameters, where)
    from timestepper.fused import launch

    with torch.cuda.device_of(described):
        of = of or known(parameters)
        return launch.backward(gradient.contiguous(), steps, described, state, parameters, where, of)


lstm_steps_backward = _operator(
    "lstm_steps_backward(Tensor gradient, Tensor steps, Tensor described, Tensor state, Tensor[] parameters, "
    "int[] shapes) -> (Tensor, Tensor)"
)(run_lstm_steps_backward)


torch.library.register_autograd("timestepper::lstm_steps_backward", _refuse)


@torch.library.register_fake("timestepper::lstm_steps_backward")
def _(gradient, steps, described, state, parameters, shapes) -> tuple[Tensor, Tensor]:
    return described.new_empty(layout(tuple(shapes)).parameters[-1]), torch.empty_like(described)


def _lstm_context(ctx, inputs, output) -> None:
    described, parameters, ctx.where = inputs
    steps, state = output
    ctx.mark_non_differentiable(state)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(described, steps, state, *parameters)


def _lstm_backward(ctx, gradient: Tensor | None, *_):
    described, steps, state, *parameters = ctx.saved_tensors
    if gradient is None:
        return None, [None] * len(parameters), None
    flat, described_gradient = lstm_steps_backward(gradient, steps, described, state, parameters, ctx.where)
    parts = flat.split([parameter.numel() for parameter in parameters])
    gradients = [
        part.view_as(parameter) if needed else None
        for part, parameter, needed in zip(parts, parameters, ctx.needs_input_grad[1], strict=True)
    ]
    return described_gradient if ctx.needs_input_grad[0] else None, gradients, None


torch.library.register_autograd("timestepper::lstm_steps", _lstm_backward, setup_context=_lstm_context)


# -- step sizes into parameters ----------------------------------------------------------------------------------------


def run_scale(parameters: list[Tensor], steps: Tensor, places: list[int], of: Known | None = None) -> Tensor:
    """Each parameter times its step sizes, which begin at its place in ``steps``, all products in one vector.

    Opaque to the compiler on purpose: it would carry the product into the pass over the features, which reads the
    parameters once per element and would then read and multiply the step sizes there, too.
    """
    if not by_kernel(steps):
        return reference.scale(parameters, steps, places)
    from timestepper.fused import launch

    with torch.cuda.device_of(steps):
        return launch.scale(parameters, steps, places, of or known(parameters))


scale = _operator("scale(Tensor[] parameters, Tensor steps, int[] places) -> Tensor")(run_scale)


@torch.library.register_fake("timestepper::scale")
def _(parameters: list[Tensor], steps: Tensor, places: list[int]) -> Tensor:
    return steps.new_empty(sum(parameter.numel() for parameter in parameters))


def run_scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, places: list[int], of: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the step sizes."""
    if not by_kernel(steps):
        return reference.scale_backward(gradient, parameters, steps, places)
    from timestepper.fused import launch

    with torch.cuda.device_of(steps):
        return launch.scale_backward(gradient.contiguous(), parameters, steps, places, of or known(parameters))


scale_backward = _operator(
    "scale_backward(Tensor gradient, Tensor[] parameters, Tensor steps, int[] places) -> (Tensor, Tensor)"
)(run_scale_backward)


torch.library.register_autograd("timestepper::scale_backward", _refuse)


@torch.library.register_fake("timestepper::scale_backward")
def _(gradient, parameters, steps, places) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gradient, memory_format=torch.contiguous_format), torch.empty_like(steps)


def _scale_context(ctx, inputs, output) -> None:
    parameters, steps, ctx.places = inputs
    ctx.save_for_backward(steps, *parameters)


def _scale_backward(ctx, gradient: Tensor):
    steps, *parameters = ctx.saved_tensors
    flat, step_gradient = scale_backward(gradient, parameters, steps, ctx.places)
    parts = flat.split([parameter.numel() for parameter in parameters])
    gradients = [part if needed else None for part, needed in zip(parts, ctx.needs_input_grad[0], strict=True)]
    return gradients, step_gradient if ctx.needs_input_grad[1] else None, None


torch.library.register_autograd("timestepper::scale", _scale_backward, setup_context=_scale_context)
