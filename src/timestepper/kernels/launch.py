"""Launches the kernels: table, grid and block sizes for each."""

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor

from timestepper.kernels import triton_controllers as controllers
from timestepper.kernels import triton_recurrence as recurrence
from timestepper.kernels.layout import GATES_X, INPUT, MATRICES, OUTPUT, TILE, Layout, power_of_two, scale_rows
from timestepper.kernels.tables import Known

NARROW = 64  # the widest stage whose four recurrent matrices fit the registers of one block
UNITS = 8  # of one block in a wide stage
# Warps of the block that does a whole narrow stage, by width. Forward every thread that holds a unit computes its
# activations, so that a unit should have few holders; backward the sums leave one unit to each thread anyway.
FORWARD_WARPS = {16: 8, 32: 16, 64: 16}
BACKWARD_WARPS = {16: 1, 32: 8, 64: 16}
_ELEMENTS = 4096  # of a matrix in one block: what a few warps can have on its way at a time

_compiled: dict[tuple, Any] = {}


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, num_warps: int = 4) -> None:
    """Through the compiled kernel itself, once there is one: Triton's own way there costs the host several times more.

    It was compiled for tensors at addresses that are multiples of 16, as the allocator gives them, and for these
    numbers.
    """
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    numbers = [argument for argument in arguments if not isinstance(argument, Tensor)]
    key = (kernel.__name__, tensors[0].device, num_warps, *numbers)
    ready = _compiled.get(key)
    if ready is None or any(tensor.data_ptr() % 16 for tensor in tensors):
        _compiled[key] = kernel[grid](*arguments, num_warps=num_warps)  # None from Triton's interpreter
    else:
        ready[(*grid, 1, 1)](*arguments)


def describe(weights: list[Tensor], known: Known) -> Tensor:
    device = weights[0].device
    where, (size, grid, block, inputs) = known.table("describe", lambda: _describe_rows(weights), device)
    out = weights[0].new_empty(size)
    _launch(controllers.describe, grid, where, out, block, inputs)
    return out


def _describe_rows(weights: list[Tensor]) -> tuple[list, tuple]:
    """The table; then the length of all descriptors, the grid, and the size of a block."""
    rows, offset = [], 0
    for weight in weights:
        results = weight.numel() // weight.shape[1]
        taps = results // weight.shape[0]
        tap_stride = weight.stride(-1) if taps > 1 else 0
        strides = (weight.stride(0), weight.stride(1), tap_stride)
        rows.append((weight.data_ptr(), offset, results, taps, weight.shape[1], *strides))
        offset += results
    inputs = power_of_two(max(row[4] for row in rows), 64, 256)
    block = _ELEMENTS // inputs
    return rows, (offset, (len(rows), triton.cdiv(max(row[2] for row in rows), block)), block, inputs)


def _lstm_table(parameters: list[Tensor], layout: Layout, known: Known) -> Tensor:
    def build() -> tuple[list, tuple]:
        return layout.rows([parameter.data_ptr() for parameter in parameters]), ()

    return known.table(("lstm", layout.shapes), build, parameters[0].device)[0]


def forward(described: Tensor, parameters: list[Tensor], layout: Layout, known: Known) -> tuple[Tensor, Tensor]:
    """Step sizes, and the state that backward needs."""
    where = _lstm_table(parameters, layout, known)
    state = described.new_empty(layout.state[-1])
    steps = described.new_empty(layout.steps[-1])
    _affine(where, described, state, layout, INPUT, "relu")
    _affine(where, state, state, layout, GATES_X, "none")
    _recurrence(layout, recurrence.lstm, recurrence.lstm_site, FORWARD_WARPS, where, state)
    _affine(where, state, steps, layout, OUTPUT, "sigmoid")
    return steps, state


def backward(
    gradient: Tensor,
    steps: Tensor,
    described: Tensor,
    state: Tensor,
    parameters: list[Tensor],
    layout: Layout,
    known: Known,
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the descriptors."""
    where = _lstm_table(parameters, layout, known)
    output_gradient = torch.ops.aten.sigmoid_backward(gradient, steps)
    state_gradient = torch.empty_like(state)
    described_gradient = torch.empty_like(described)
    parameter_gradient = state.new_empty(layout.parameters[-1])
    _affine_backward(where, output_gradient, state_gradient, state, layout, OUTPUT, False)
    _recurrence(
        layout, recurrence.lstm_backward, recurrence.lstm_site_backward, BACKWARD_WARPS, where, state, state_gradient
    )
    _affine_backward(where, state_gradient, state_gradient, state, layout, GATES_X, True)
    _affine_backward(where, state_gradient, described_gradient, described, layout, INPUT, False)
    matrices = MATRICES * len(layout.shapes)
    operands = (described, state, state_gradient, output_gradient, parameter_gradient)
    blocks = (power_of_two(matrices, 4), 16, *TILE)
    _launch(controllers.weight_gradients, (layout.tiles[-1],), where, matrices, *operands, *blocks)
    return parameter_gradient, described_gradient


def _affine(where: Tensor, source: Tensor, target: Tensor, layout: Layout, matrix: int, activation: str) -> None:
    grid, block, warps = _blocks(layout, matrix, backward=False)
    _launch(controllers.affine, grid, where, source, target, matrix, activation, *block, num_warps=warps)


def _affine_backward(
    where: Tensor, gradient: Tensor, out: Tensor, source: Tensor, layout: Layout, matrix: int, relu: bool
) -> None:
    grid, block, warps = _blocks(layout, matrix, backward=True)
    _launch(controllers.affine_backward, grid, where, gradient, out, source, matrix, relu, *block, num_warps=warps)


@lru_cache(maxsize=256)
def _blocks(layout: Layout, matrix: int, backward: bool) -> tuple[tuple[int, int, int], tuple[int, int], int]:
    """The grid; rows and columns of a matrix in one block; its warps."""
    n, k = layout.extent(matrix)
    if backward:
        rows = power_of_two(n, 16, _ELEMENTS // 16)  # the sum runs over the rows: few rounds of many
        columns = power_of_two(min(k, _ELEMENTS // rows), 16, 64)
        count = triton.cdiv(k, columns)
    else:
        rows, columns = 8, power_of_two(k, 16, _ELEMENTS // 8)
        count = triton.cdiv(n, rows)
    return (len(layout.shapes), layout.depth, count), (rows, columns), 8 if rows * columns >= _ELEMENTS else 4


def _recurrence(layout: Layout, whole: Any, single: Any, warps: dict[int, int], *tensors: Tensor) -> None:
    """All sites in one launch where the recurrent weights fit the registers, else a launch for every site."""
    hidden = power_of_two(max(h for _, _, _, h in layout.shapes), 16)
    stages = len(layout.shapes)
    if hidden <= NARROW:
        _launch(whole, (stages,), *tensors, hidden, num_warps=warps[hidden])
        return
    grid = (stages, triton.cdiv(hidden, UNITS))
    for site in range(layout.depth):
        _launch(single, grid, *tensors, site, UNITS, hidden, num_warps=8)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int], known: Known) -> Tensor:
    """The products, one after the other."""
    where, (size, grid, block) = _scale_table(parameters, places, known)
    out = steps.new_empty(size)
    _launch(controllers.scale, grid, where, steps, out, block)
    return out


def scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, places: list[int], known: Known
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the step sizes."""
    where, (_, grid, block) = _scale_table(parameters, places, known)
    parameter_gradients, step_gradients = torch.empty_like(gradient), torch.empty_like(steps)
    _launch(controllers.scale_backward, grid, where, steps, gradient, parameter_gradients, step_gradients, block)
    return parameter_gradients, step_gradients


def _scale_table(parameters: list[Tensor], places: list[int], known: Known) -> tuple[Tensor, tuple]:
    """With it the length of all products, a grid of sites and blocks of channels, and the size of a block."""

    def build() -> tuple[list, tuple]:
        sizes = list(map(Tensor.numel, parameters))
        block = power_of_two(max(sizes), 16, 128)
        rows = scale_rows(list(map(Tensor.data_ptr, parameters)), sizes, places)
        return [*rows], (sum(sizes), (len(set(places)), triton.cdiv(max(sizes), block)), block)

    return known.table(("scale", *places), build, parameters[0].device)
