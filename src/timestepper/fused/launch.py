"""Launches the kernels: table, grid and block sizes for each."""

from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from timestepper.fused import kernels
from timestepper.fused.layout import (
    GATES_X,
    INPUT,
    MATRICES,
    OUTPUT,
    TILE,
    Layout,
    Rows,
    kept_table,
    power_of_two,
    scale_rows,
    to_device,
)

NARROW = 64  # the widest stage whose four recurrent matrices fit the registers of one block
UNITS = 8  # of one block in a wide stage
# Warps of the block that does a whole narrow stage, by width. Forward every thread that holds a unit computes its
# activations, so that a unit should have few holders; backward the sums leave one unit to each thread anyway.
FORWARD_WARPS = {16: 8, 32: 16, 64: 16}
BACKWARD_WARPS = {16: 1, 32: 8, 64: 16}
_ELEMENTS = 4096  # of a matrix in one block: what a few warps can have on its way at a time


def describe(weights: list[Tensor], keep: bool = False) -> Tensor:
    """``keep``: the table of the weights may be kept between calls, here and below."""
    key = ("describe", *((weight.data_ptr(), weight.shape, weight.stride()) for weight in weights))
    table, rows = _table(key, lambda: _describe_rows(weights), weights[0].device, keep)
    out = weights[0].new_empty(rows[-1][1] + rows[-1][2])
    inputs = power_of_two(max(row[4] for row in rows), 64, 256)
    block = _ELEMENTS // inputs
    grid = (len(rows), triton.cdiv(max(row[2] for row in rows), block))
    kernels.describe[grid](table, out, block, inputs)
    return out


def _describe_rows(weights: list[Tensor]) -> Rows:
    rows, offset = [], 0
    for weight in weights:
        results = weight.numel() // weight.shape[1]
        taps = results // weight.shape[0]
        tap_stride = weight.stride(-1) if taps > 1 else 0
        strides = (weight.stride(0), weight.stride(1), tap_stride)
        rows.append((weight.data_ptr(), offset, results, taps, weight.shape[1], *strides))
        offset += results
    return tuple(rows)


def _table(key: tuple, build: Callable[[], Rows], device: torch.device, keep: bool) -> tuple[Tensor, Rows]:
    if keep:
        return kept_table((device, *key), build, device)
    rows = build()
    return to_device(rows, device), rows


def forward(
    described: Tensor, parameters: list[Tensor], layout: Layout, keep: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Step sizes, the state that backward needs, and the table on the device."""
    addresses = tuple(parameter.data_ptr() for parameter in parameters)
    key = ("lstm", layout.shapes, addresses)
    table, _ = _table(key, lambda: tuple(map(tuple, layout.rows([*addresses]))), described.device, keep)
    state = described.new_empty(layout.state[-1])
    steps = described.new_empty(layout.steps[-1])
    _affine(table, described, state, layout, INPUT, "relu")
    _affine(table, state, state, layout, GATES_X, "none")
    _recurrence(layout, kernels.lstm, kernels.lstm_site, FORWARD_WARPS, table, state)
    _affine(table, state, steps, layout, OUTPUT, "sigmoid")
    return steps, state, table


def backward(
    gradient: Tensor, steps: Tensor, described: Tensor, state: Tensor, table: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the descriptors."""
    output_gradient = torch.ops.aten.sigmoid_backward(gradient, steps)
    state_gradient = torch.empty_like(state)
    described_gradient = torch.empty_like(described)
    parameter_gradient = state.new_empty(layout.parameters[-1])
    _affine_backward(table, output_gradient, state_gradient, state, layout, OUTPUT, False)
    _recurrence(layout, kernels.lstm_backward, kernels.lstm_site_backward, BACKWARD_WARPS, table, state, state_gradient)
    _affine_backward(table, state_gradient, state_gradient, state, layout, GATES_X, True)
    _affine_backward(table, state_gradient, described_gradient, described, layout, INPUT, False)
    matrices = MATRICES * len(layout.shapes)
    kernels.weight_gradients[(layout.tiles[-1],)](
        table,
        matrices,
        described,
        state,
        state_gradient,
        output_gradient,
        parameter_gradient,
        BLOCK_M=power_of_two(matrices, 4),
        BLOCK_T=16,
        BLOCK_N=TILE[0],
        BLOCK_K=TILE[1],
    )
    return parameter_gradient, described_gradient


def _affine(table: Tensor, source: Tensor, target: Tensor, layout: Layout, matrix: int, activation: str) -> None:
    n, k = layout.extent(matrix)
    rows, columns = 8, power_of_two(k, 16, _ELEMENTS // 8)
    grid = (len(layout.shapes), layout.depth, triton.cdiv(n, rows))
    kernels.affine[grid](table, source, target, matrix, activation, rows, columns, num_warps=_warps(rows * columns))


def _affine_backward(
    table: Tensor, gradient: Tensor, out: Tensor, source: Tensor, layout: Layout, matrix: int, relu: bool
) -> None:
    n, k = layout.extent(matrix)
    rows = power_of_two(n, 16, _ELEMENTS // 16)  # the sum runs over the rows: few rounds of many
    columns = power_of_two(min(k, _ELEMENTS // rows), 16, 64)
    grid = (len(layout.shapes), layout.depth, triton.cdiv(k, columns))
    kernels.affine_backward[grid](
        table, gradient, out, source, matrix, relu, rows, columns, num_warps=_warps(rows * columns)
    )


def _recurrence(layout: Layout, whole: Any, single: Any, warps: dict[int, int], *tensors: Tensor) -> None:
    """All sites in one launch where the recurrent weights fit the registers, else a launch for every site."""
    hidden = power_of_two(max(h for _, _, _, h in layout.shapes), 16)
    stages = len(layout.shapes)
    if hidden <= NARROW:
        whole[(stages,)](*tensors, hidden, num_warps=warps[hidden])
        return
    grid = (stages, triton.cdiv(hidden, UNITS))
    for site in range(layout.depth):
        single[grid](*tensors, site, UNITS, hidden, num_warps=8)


def scale(parameters: list[Tensor], steps: Tensor, places: list[int], keep: bool = False) -> tuple[Tensor, Tensor]:
    """The products and the table on the device."""
    sizes = [parameter.numel() for parameter in parameters]
    addresses = [parameter.data_ptr() for parameter in parameters]
    key = ("scale", *addresses, *sizes, *places)
    table, _ = _table(key, lambda: tuple(scale_rows(addresses, sizes, places)), steps.device, keep)
    out = steps.new_empty(sum(sizes))
    grid, block = _channels(sizes, places)
    kernels.scale[grid](table, steps, out, block)
    return out, table


def scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, table: Tensor, places: list[int]
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the step sizes."""
    parameter_gradients, step_gradients = torch.empty_like(gradient), torch.empty_like(steps)
    grid, block = _channels([parameter.numel() for parameter in parameters], places)
    kernels.scale_backward[grid](table, steps, gradient, parameter_gradients, step_gradients, block)
    return parameter_gradients, step_gradients


def _channels(sizes: list[int], places: list[int]) -> tuple[tuple[int, int], int]:
    """A grid of sites and blocks of channels, and the size of a block."""
    block = power_of_two(max(sizes), 16, 128)
    return (len(set(places)), triton.cdiv(max(sizes), block)), block


def _warps(elements: int) -> int:
    return 8 if elements >= _ELEMENTS else 4
