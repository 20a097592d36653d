"""Triton kernels of the LSTM controller around its recurrence, each working on all stages of a network in one launch.

The controller is small: what costs is the number of launches, not the arithmetic. Every product is done in full
float32. ``table`` is described in layout.py.
"""

import triton
import triton.language as tl

from timestepper.kernels import layout
from timestepper.kernels.triton_basics import address, integer, sigmoid

WEIGHT = tl.constexpr(layout.WEIGHT)
BIAS = tl.constexpr(layout.BIAS)
LENGTH = tl.constexpr(layout.LENGTH)
ROWS = tl.constexpr(layout.ROWS)
COLUMNS = tl.constexpr(layout.COLUMNS)
SOURCE = tl.constexpr(layout.SOURCE)
TARGET = tl.constexpr(layout.TARGET)
WEIGHT_GRADIENT = tl.constexpr(layout.WEIGHT_GRADIENT)
BIAS_GRADIENT = tl.constexpr(layout.BIAS_GRADIENT)
FIRST_TILE = tl.constexpr(layout.FIRST_TILE)
WIDTH = tl.constexpr(layout.WIDTH)
MATRICES = tl.constexpr(layout.MATRICES)
GATES_H = tl.constexpr(layout.GATES_H)
INPUT = tl.constexpr(layout.INPUT)
OUTPUT = tl.constexpr(layout.OUTPUT)
SCALE_WIDTH = tl.constexpr(layout.SCALE_WIDTH)


@triton.jit
def describe(table, out, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr):
    """Mean of each convolution's weight over its inputs. Row: address, offset, results, taps, inputs, three strides.

    Grid: convolutions, blocks of results. A result is an output channel and a tap.
    """
    row = table + tl.program_id(0) * 8
    results = integer(row, 2)
    result = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    if tl.program_id(1) * BLOCK_OUT < results:
        weight = address(row, 0)
        taps = integer(row, 3)
        inputs = integer(row, 4)
        place = (result // taps) * integer(row, 5) + (result % taps) * integer(row, 7)
        stride = integer(row, 6)
        total = tl.zeros([BLOCK_OUT], tl.float32)
        for first in range(0, inputs, BLOCK_IN):
            i = first + tl.arange(0, BLOCK_IN)
            inside = (result < results)[:, None] & (i < inputs)[None, :]
            total += tl.sum(tl.load(weight + place[:, None] + i[None, :] * stride, mask=inside, other=0.0), 1)
        tl.store(out + integer(row, 1) + result, total / inputs, mask=result < results)


@triton.jit
def affine(
    table,
    sources,
    targets,
    MATRIX: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """target = activation(W source + b). Grid: stages, sites, blocks of rows of W."""
    row = table + (tl.program_id(0) * MATRICES + MATRIX) * WIDTH
    site = tl.program_id(1)
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = integer(row, ROWS)
    columns = integer(row, COLUMNS)
    if (site < integer(row, LENGTH)) & (tl.program_id(2) * BLOCK_N < rows):
        weight = address(row, WEIGHT)
        source = sources + integer(row, SOURCE) + site * columns
        total = tl.load(address(row, BIAS) + n, mask=n < rows, other=0.0)
        for first in range(0, columns, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            inside = (n < rows)[:, None] & (k < columns)[None, :]
            w = tl.load(weight + n[:, None] * columns + k[None, :], mask=inside, other=0.0)
            total += tl.sum(w * tl.load(source + k, mask=k < columns, other=0.0)[None, :], 1)
        if ACTIVATION == "relu":
            total = tl.maximum(total, 0.0)
        if ACTIVATION == "sigmoid":
            total = sigmoid(total)
        tl.store(targets + integer(row, TARGET) + site * rows + n, total, mask=n < rows)


@triton.jit
def affine_backward(
    table,
    target_gradients,
    source_gradients,
    sources,
    MATRIX: tl.constexpr,
    RELU: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradient of the source, W^T g; zero where RELU says that the source was cut off. Grid: stages, sites, columns."""
    row = table + (tl.program_id(0) * MATRICES + MATRIX) * WIDTH
    site = tl.program_id(1)
    k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = integer(row, ROWS)
    columns = integer(row, COLUMNS)
    if (site < integer(row, LENGTH)) & (tl.program_id(2) * BLOCK_K < columns):
        weight = address(row, WEIGHT)
        gradient = target_gradients + integer(row, TARGET) + site * rows
        total = tl.zeros([BLOCK_K], tl.float32)
        for first in range(0, rows, BLOCK_N):
            n = first + tl.arange(0, BLOCK_N)
            inside = (n < rows)[:, None] & (k < columns)[None, :]
            w = tl.load(weight + n[:, None] * columns + k[None, :], mask=inside, other=0.0)
            total += tl.sum(w * tl.load(gradient + n, mask=n < rows, other=0.0)[:, None], 0)
        place = integer(row, SOURCE) + site * columns + k
        if RELU:
            total = tl.where(tl.load(sources + place, mask=k < columns, other=0.0) > 0, total, 0.0)
        tl.store(source_gradients + place, total, mask=k < columns)


@triton.jit
def weight_gradients(
    table,
    matrices,
    described,
    state,
    state_gradients,
    step_gradients,
    out,
    BLOCK_M: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradients of all weights and biases: sum over sites of target gradient x source. Grid: tiles of all matrices.

    A matrix here is one of the four of one stage; the table says which of all tiles is its first.
    """
    tile = tl.program_id(0)
    every = tl.arange(0, BLOCK_M)
    firsts = tl.load(table + every * WIDTH + FIRST_TILE, mask=every < matrices, other=1 << 30).to(tl.int32)
    number = tl.sum((firsts <= tile).to(tl.int32), 0) - 1
    matrix = number % MATRICES
    row = table + number * WIDTH
    rows = integer(row, ROWS)
    columns = integer(row, COLUMNS)
    tile -= integer(row, FIRST_TILE)
    across = tl.cdiv(columns, BLOCK_K)
    n = (tile // across) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = (tile % across) * BLOCK_K + tl.arange(0, BLOCK_K)
    length = integer(row, LENGTH)
    # The hidden state that a site's gates read is that of the site before; their gradient is that of the x half.
    before = tl.where(matrix == GATES_H, 1, 0)
    target = integer(row - before * WIDTH, TARGET)
    gradients = tl.where(matrix == OUTPUT, step_gradients, state_gradients) + target
    sources = tl.where(matrix == INPUT, described, state) + integer(row, SOURCE)
    total = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    bias = tl.zeros([BLOCK_N], tl.float32)
    for first in range(0, length, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        g_inside = (n < rows)[:, None] & (t < length)[None, :]
        g = tl.load(gradients + t[None, :] * rows + n[:, None], mask=g_inside, other=0.0)
        s_inside = ((t >= before) & (t < length))[:, None] & (k < columns)[None, :]
        s = tl.load(sources + (t - before)[:, None] * columns + k[None, :], mask=s_inside, other=0.0)
        total += tl.dot(g, s, input_precision="ieee")
        bias += tl.sum(g, 1)
    inside = (n < rows)[:, None] & (k < columns)[None, :]
    tl.store(out + integer(row, WEIGHT_GRADIENT) + n[:, None] * columns + k[None, :], total, mask=inside)
    if (tile % across == 0) & (matrix != GATES_H):
        tl.store(out + integer(row, BIAS_GRADIENT) + n, bias, mask=n < rows)


@triton.jit
def scale(table, steps, out, BLOCK: tl.constexpr):
    """Step sizes into the parameters that they enter, all sites in one launch. Grid: sites, blocks of channels."""
    row = table + tl.program_id(0) * SCALE_WIDTH
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < integer(row, 1)
    dt = tl.load(steps + integer(row, 0) + channel, mask=inside, other=0.0)
    first = integer(row, 2)
    for entry in range(first, first + integer(row, 3)):
        entry_row = table + entry * SCALE_WIDTH
        parameter = tl.load(address(entry_row, 0) + channel, mask=inside, other=0.0)
        tl.store(out + integer(entry_row, 1) + channel, parameter * dt, mask=inside)


@triton.jit
def scale_backward(table, steps, gradient, parameter_gradients, step_gradients, BLOCK: tl.constexpr):
    """Gradients of the parameters and of the step sizes. Grid: sites, blocks of channels."""
    row = table + tl.program_id(0) * SCALE_WIDTH
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < integer(row, 1)
    dt = tl.load(steps + integer(row, 0) + channel, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    first = integer(row, 2)
    for entry in range(first, first + integer(row, 3)):
        entry_row = table + entry * SCALE_WIDTH
        place = integer(entry_row, 1) + channel
        g = tl.load(gradient + place, mask=inside, other=0.0)
        total += g * tl.load(address(entry_row, 0) + channel, mask=inside, other=0.0)
        tl.store(parameter_gradients + place, g * dt, mask=inside)
    tl.store(step_gradients + integer(row, 0) + channel, total, mask=inside)
