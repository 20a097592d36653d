"""Triton kernels of the LSTM controller, each working on all stages of a network in one launch.

The controller is small: what costs is the number of launches, not the arithmetic. Every product is done in full
float32. ``table`` is described in layout.py.
"""

import triton
import triton.language as tl

from timestepper.fused import layout

WEIGHT = tl.constexpr(layout.WEIGHT)
BIAS = tl.constexpr(layout.BIAS)
LENGTH = tl.constexpr(layout.LENGTH)
ROWS = tl.constexpr(layout.ROWS)
COLUMNS = tl.constexpr(layout.COLUMNS)
SOURCE = tl.constexpr(layout.SOURCE)
TARGET = tl.constexpr(layout.TARGET)
WEIGHT_GRADIENT = tl.constexpr(layout.WEIGHT_GRADIENT)
BIAS_GRADIENT = tl.constexpr(layout.BIAS_GRADIENT)
WIDTH = tl.constexpr(layout.WIDTH)
MATRICES = tl.constexpr(layout.MATRICES)
GATES_X = tl.constexpr(layout.GATES_X)
GATES_H = tl.constexpr(layout.GATES_H)
INPUT = tl.constexpr(layout.INPUT)
OUTPUT = tl.constexpr(layout.OUTPUT)


@triton.jit
def _integer(row, column):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def _address(row, column):
    return tl.load(row + column).to(tl.pointer_type(tl.float32))


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """Accurate near zero too, where (1 - e) / (1 + e) cancels."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    e = tl.exp(-2 * tl.abs(x))
    ratio = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0, -ratio, ratio))


@triton.jit
def describe(table, out, BLOCK_OUT: tl.constexpr, BLOCK_IN: tl.constexpr):
    """Mean of each convolution's weight over its inputs. Row: address, offset, results, taps, inputs, three strides.

    Grid: convolutions, blocks of results. A result is an output channel and a tap.
    """
    row = table + tl.program_id(0) * 8
    results = _integer(row, 2)
    result = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    if tl.program_id(1) * BLOCK_OUT < results:
        weight = _address(row, 0)
        taps = _integer(row, 3)
        inputs = _integer(row, 4)
        place = (result // taps) * _integer(row, 5) + (result % taps) * _integer(row, 7)
        stride = _integer(row, 6)
        total = tl.zeros([BLOCK_OUT], tl.float32)
        for first in range(0, inputs, BLOCK_IN):
            i = first + tl.arange(0, BLOCK_IN)
            inside = (result < results)[:, None] & (i < inputs)[None, :]
            total += tl.sum(tl.load(weight + place[:, None] + i[None, :] * stride, mask=inside, other=0.0), 1)
        tl.store(out + _integer(row, 1) + result, total / inputs, mask=result < results)


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
    rows = _integer(row, ROWS)
    columns = _integer(row, COLUMNS)
    if (site < _integer(row, LENGTH)) & (tl.program_id(2) * BLOCK_N < rows):
        weight = _address(row, WEIGHT)
        source = sources + _integer(row, SOURCE) + site * columns
        total = tl.load(_address(row, BIAS) + n, mask=n < rows, other=0.0)
        for first in range(0, columns, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            inside = (n < rows)[:, None] & (k < columns)[None, :]
            w = tl.load(weight + n[:, None] * columns + k[None, :], mask=inside, other=0.0)
            total += tl.sum(w * tl.load(source + k, mask=k < columns, other=0.0)[None, :], 1)
        if ACTIVATION == "relu":
            total = tl.maximum(total, 0.0)
        if ACTIVATION == "sigmoid":
            total = _sigmoid(total)
        tl.store(targets + _integer(row, TARGET) + site * rows + n, total, mask=n < rows)


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
    rows = _integer(row, ROWS)
    columns = _integer(row, COLUMNS)
    if (site < _integer(row, LENGTH)) & (tl.program_id(2) * BLOCK_K < columns):
        weight = _address(row, WEIGHT)
        gradient = target_gradients + _integer(row, TARGET) + site * rows
        total = tl.zeros([BLOCK_K], tl.float32)
        for first in range(0, rows, BLOCK_N):
            n = first + tl.arange(0, BLOCK_N)
            inside = (n < rows)[:, None] & (k < columns)[None, :]
            w = tl.load(weight + n[:, None] * columns + k[None, :], mask=inside, other=0.0)
            total += tl.sum(w * tl.load(gradient + n, mask=n < rows, other=0.0)[:, None], 0)
        place = _integer(row, SOURCE) + site * columns + k
        if RELU:
            total = tl.where(tl.load(sources + place, mask=k < columns, other=0.0) > 0, total, 0.0)
        tl.store(source_gradients + place, total, mask=k < columns)


@triton.jit
def weight_gradients(
    table,
    described,
    state,
    state_gradients,
    step_gradients,
    out,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Gradients of all weights and biases: sum over sites of target gradient x source. Grid: matrices, rows, columns.

    A matrix here is one of the four of one stage.
    """
    matrix = tl.program_id(0) % MATRICES
    row = table + tl.program_id(0) * WIDTH
    rows = _integer(row, ROWS)
    columns = _integer(row, COLUMNS)
    if (tl.program_id(1) * BLOCK_N < rows) & (tl.program_id(2) * BLOCK_K < columns):
        n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.program_id(2) * BLOCK_K + tl.arange(0, BLOCK_K)
        length = _integer(row, LENGTH)
        # The hidden state that a site's gates read is that of the site before; their gradient is that of the x half.
        before = tl.where(matrix == GATES_H, 1, 0)
        target = _integer(row - before * WIDTH, TARGET)
        gradients = tl.where(matrix == OUTPUT, step_gradients, state_gradients) + target
        sources = tl.where(matrix == INPUT, described, state) + _integer(row, SOURCE)
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
        tl.store(out + _integer(row, WEIGHT_GRADIENT) + n[:, None] * columns + k[None, :], total, mask=inside)
        if (tl.program_id(2) == 0) & (matrix != GATES_H):
            tl.store(out + _integer(row, BIAS_GRADIENT) + n, bias, mask=n < rows)


@triton.jit
def _gate(weight, pre, gate, unit, k, hidden, h, BLOCK_U: tl.constexpr):
    """Pre-activation of one gate for a block of units: the x half, which is there already, and W_h h."""
    inside = (unit < hidden)[:, None] & (k < hidden)[None, :]
    w = tl.load(weight + (gate * hidden + unit)[:, None] * hidden + k[None, :], mask=inside, other=0.0)
    return tl.load(pre + gate * hidden + unit, mask=unit < hidden, other=0.0) + tl.sum(w * h[None, :], 1)


@triton.jit
def lstm(table, state, BLOCK_U: tl.constexpr, HIDDEN: tl.constexpr):
    """The recurrence over depth. Grid: stages. Finds the x half of the gates in ``state``, leaves the gates there.

    State passes from site to site through memory, behind a barrier: the weights of a wide stage fit no register file.
    """
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    length = _integer(row, LENGTH)
    weight = _address(row, WEIGHT)
    gates = state + _integer(row - WIDTH, TARGET)
    cells = state + _integer(row, TARGET)
    states = state + _integer(row, SOURCE)
    k = tl.arange(0, HIDDEN)
    for site in range(0, length):
        h = tl.load(states + (site - 1) * hidden + k, mask=(k < hidden) & (site > 0), other=0.0)
        pre = gates + site * 4 * hidden
        for first in range(0, hidden, BLOCK_U):
            unit = first + tl.arange(0, BLOCK_U)
            valid = unit < hidden
            i = _sigmoid(_gate(weight, pre, 0, unit, k, hidden, h, BLOCK_U))
            f = _sigmoid(_gate(weight, pre, 1, unit, k, hidden, h, BLOCK_U))
            g = _tanh(_gate(weight, pre, 2, unit, k, hidden, h, BLOCK_U))
            o = _sigmoid(_gate(weight, pre, 3, unit, k, hidden, h, BLOCK_U))
            c = f * tl.load(cells + (site - 1) * hidden + unit, mask=valid & (site > 0), other=0.0) + i * g
            tl.store(pre + unit, i, mask=valid)
            tl.store(pre + hidden + unit, f, mask=valid)
            tl.store(pre + 2 * hidden + unit, g, mask=valid)
            tl.store(pre + 3 * hidden + unit, o, mask=valid)
            tl.store(cells + site * hidden + unit, c, mask=valid)
            tl.store(states + site * hidden + unit, o * _tanh(c), mask=valid)
        tl.debug_barrier()


@triton.jit
def _gate_transposed(weight, later, gate, unit, k, hidden, mask):
    """What one gate of the next site sends back to a block of units of this site."""
    inside = (k < hidden)[:, None] & (unit < hidden)[None, :] & mask
    w = tl.load(weight + (gate * hidden + k)[:, None] * hidden + unit[None, :], mask=inside, other=0.0)
    z = tl.load(later + gate * hidden + k, mask=(k < hidden) & mask, other=0.0)
    return tl.sum(w * z[:, None], 0)


@triton.jit
def lstm_backward(table, state, gradient, BLOCK_U: tl.constexpr, HIDDEN: tl.constexpr):
    """The recurrence backwards. ``gradient`` has the layout of ``state`` and holds dh from the outputs; gets dgates.

    The cell's part of it carries dc from site to site.
    """
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    length = _integer(row, LENGTH)
    weight = _address(row, WEIGHT)
    gates = _integer(row - WIDTH, TARGET)
    cells = _integer(row, TARGET)
    states = _integer(row, SOURCE)
    k = tl.arange(0, HIDDEN)
    for step in range(0, length):
        site = length - 1 - step
        later = gradient + gates + (site + 1) * 4 * hidden
        for first in range(0, hidden, BLOCK_U):
            unit = first + tl.arange(0, BLOCK_U)
            valid = unit < hidden
            dh = tl.load(gradient + states + site * hidden + unit, mask=valid, other=0.0)
            for gate in tl.static_range(4):
                dh += _gate_transposed(weight, later, gate, unit, k, hidden, step > 0)
            values = state + gates + site * 4 * hidden + unit
            i = tl.load(values, mask=valid, other=0.0)
            f = tl.load(values + hidden, mask=valid, other=0.0)
            g = tl.load(values + 2 * hidden, mask=valid, other=0.0)
            o = tl.load(values + 3 * hidden, mask=valid, other=0.0)
            tanh_c = _tanh(tl.load(state + cells + site * hidden + unit, mask=valid, other=0.0))
            before = (site - 1) * hidden + unit
            c_before = tl.load(state + cells + before, mask=valid & (before >= 0), other=0.0)
            carried = gradient + cells + unit
            dc = dh * o * (1 - tanh_c * tanh_c)
            dc += tl.load(carried + (site + 1) * hidden, mask=valid & (step > 0), other=0.0)
            target = gradient + gates + site * 4 * hidden + unit
            tl.store(target, dc * g * i * (1 - i), mask=valid)
            tl.store(target + hidden, dc * c_before * f * (1 - f), mask=valid)
            tl.store(target + 2 * hidden, dc * i * (1 - g * g), mask=valid)
            tl.store(target + 3 * hidden, dh * tanh_c * o * (1 - o), mask=valid)
            tl.store(carried + site * hidden, dc * f, mask=valid)
        tl.debug_barrier()
