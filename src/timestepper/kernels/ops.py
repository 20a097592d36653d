"""The operators that PyTorch sees: opaque to ``torch.compile``, so that neither graph nor compile time grows.

``timestepper::describe``, ``timestepper::lstm_steps`` and ``timestepper::scale``, and the gradients of the last two. On
CUDA (and under Triton's interpreter) they launch kernels; elsewhere they run the reference, which is how the wiring
itself is tested in float64. Who knows where the tensors are says so (``of``) and saves looking at each of them.

Each is two operators: one that has a gradient (eager.py) and is all that a network calls, and ``…_run``, which has none
and is what a compiled graph is left with. They are not made by ``torch.library.custom_op`` or ``register_autograd``,
whose way from the call to the function costs the host more than the kernels do.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from timestepper.kernels import reference
from timestepper.kernels.layout import layout
from timestepper.kernels.tables import Known, known

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def by_kernel(tensor: Tensor) -> bool:
    return tensor.is_cuda or (INTERPRETED and tensor.dtype == torch.float32)


def _operator(schema: str, function: Callable, fake: Callable) -> Callable:
    """Register a function as an operator, and what it returns of tensors without data; what is returned calls it."""
    name, _, rest = schema.partition("(")
    run = f"timestepper::{name}_run"
    torch.library.define(run, f"({rest}")
    torch.library.impl(run, "CompositeExplicitAutograd", function)
    torch.library.register_fake(run, fake)
    for key in ("Autograd", "ADInplaceOrView"):
        torch.library.impl(run, key, torch.library.fallthrough_kernel)
    operator = getattr(torch.ops.timestepper, f"{name}_run").default
    torch.library.define(f"timestepper::{name}", f"({rest}")
    torch.library.impl(f"timestepper::{name}", "CompositeExplicitAutograd", operator)
    return getattr(torch.ops.timestepper, name).default


def with_gradient(operator: Callable, function: Callable) -> None:
    """What the operator does where gradients may be wanted."""
    torch.library.impl(operator.name(), "Autograd", function)  # type: ignore[attr-defined]


def _run(name: str, where: Tensor, tensors: list[Tensor], of: Known | None, *arguments: Any) -> Any:
    """By the kernels that read ``tensors``, or, where there are none, by the reference."""
    if not by_kernel(where):
        return getattr(reference, name)(*arguments)
    from timestepper.kernels import launch

    with torch.cuda.device_of(where):
        return getattr(launch, name)(*arguments, of or known(tensors))


# -- descriptors -------------------------------------------------------------------------------------------------------


def run_describe(weights: list[Tensor], of: Known | None = None) -> Tensor:
    """Each convolution weight averaged over its inputs and flattened, all in one vector."""
    return _run("describe", weights[0], weights, of, weights)


describe = _operator(
    "describe(Tensor[] weights) -> Tensor",
    run_describe,
    lambda weights: weights[0].new_empty(sum(weight.numel() // weight.shape[1] for weight in weights)),
)


# -- the LSTM controllers of all stages --------------------------------------------------------------------------------


def run_lstm_steps(
    described: Tensor, parameters: list[Tensor], shapes: list[int], of: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Step sizes of all stages in one vector; then the state that the backward pass reads."""
    return _run("forward", described, parameters, of, described, parameters, layout(tuple(shapes)))


def _like_lstm_steps(described: Tensor, parameters: list[Tensor], shapes: list[int]) -> tuple[Tensor, Tensor]:
    where = layout(tuple(shapes))
    return described.new_empty(where.steps[-1]), described.new_empty(where.state[-1])


lstm_steps = _operator(
    "lstm_steps(Tensor described, Tensor[] parameters, int[] shapes) -> (Tensor, Tensor)",
    run_lstm_steps,
    _like_lstm_steps,
)


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
    arguments = gradient.contiguous(), steps, described, state, parameters, layout(tuple(shapes))
    return _run("backward", described, parameters, of, *arguments)


def _like_lstm_steps_backward(gradient, steps, described, state, parameters, shapes) -> tuple[Tensor, Tensor]:
    return described.new_empty(layout(tuple(shapes)).parameters[-1]), torch.empty_like(described)


lstm_steps_backward = _operator(
    "lstm_steps_backward(Tensor gradient, Tensor steps, Tensor described, Tensor state, Tensor[] parameters, "
    "int[] shapes) -> (Tensor, Tensor)",
    run_lstm_steps_backward,
    _like_lstm_steps_backward,
)


# -- step sizes into parameters ----------------------------------------------------------------------------------------


def run_scale(parameters: list[Tensor], steps: Tensor, places: list[int], of: Known | None = None) -> Tensor:
    """Each parameter times its step sizes, which begin at its place in ``steps``, all products in one vector.

    Opaque to the compiler on purpose: it would carry the product into the pass over the features, which reads the
    parameters once per element and would then read and multiply the step sizes there, too.
    """
    return _run("scale", steps, parameters, of, parameters, steps, places)


scale = _operator(
    "scale(Tensor[] parameters, Tensor steps, int[] places) -> Tensor",
    run_scale,
    lambda parameters, steps, places: steps.new_empty(sum(parameter.numel() for parameter in parameters)),
)


def run_scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, places: list[int], of: Known | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the step sizes."""
    return _run("scale_backward", steps, parameters, of, gradient.contiguous(), parameters, steps, places)


def _like_scale_backward(gradient, parameters, steps, places) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gradient, memory_format=torch.contiguous_format), torch.empty_like(steps)


scale_backward = _operator(
    "scale_backward(Tensor gradient, Tensor[] parameters, Tensor steps, int[] places) -> (Tensor, Tensor)",
    run_scale_backward,
    _like_scale_backward,
)
