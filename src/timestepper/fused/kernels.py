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
FIRST_TILE = tl.constexpr(layout.FIRST_TILE)
WIDTH = tl.constexpr(layout.WIDTH)
MATRICES = tl.constexpr(layout.MATRICES)
GATES_X = tl.constexpr(layout.GATES_X)
GATES_H = tl.constexpr(layout.GATES_H)
INPUT = tl.constexpr(layout.INPUT)
OUTPUT = tl.constexpr(layout.OUTPUT)
SCALE_WIDTH = tl.constexpr(layout.SCALE_WIDTH)


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
    rows = _integer(row, ROWS)
    columns = _integer(row, COLUMNS)
    tile -= _integer(row, FIRST_TILE)
    across = tl.cdiv(columns, BLOCK_K)
    n = (tile // across) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = (tile % across) * BLOCK_K + tl.arange(0, BLOCK_K)
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
    if (tile % across == 0) & (matrix != GATES_H):
        tl.store(out + _integer(row, BIAS_GRADIENT) + n, bias, mask=n < rows)


@triton.jit
def _matrix(weight, gate, rows, columns, hidden):
    """A block of one gate's recurrent weights."""
    inside = (rows < hidden)[:, None] & (columns < hidden)[None, :]
    return tl.load(weight + (gate * hidden + rows)[:, None] * hidden + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _matrices(weight, rows, columns, hidden):
    """The same block of all four gates."""
    w_i = _matrix(weight, 0, rows, columns, hidden)
    w_f = _matrix(weight, 1, rows, columns, hidden)
    w_g = _matrix(weight, 2, rows, columns, hidden)
    w_o = _matrix(weight, 3, rows, columns, hidden)
    return w_i, w_f, w_g, w_o


@triton.jit
def _not_first(unit, hidden, number):
    """Units that exist, at all numbers but 0: what comes from the site before or after."""
    return (unit < hidden) & (number * hidden + unit >= hidden)


@triton.jit
def _cell(gates, cells, states, unit, hidden, z_i, z_f, z_g, z_o, c_before):
    """One site's cell for some units: keeps gates, cell and hidden state, hands on the last two."""
    valid = unit < hidden
    i = _sigmoid(z_i + tl.load(gates + unit, mask=valid, other=0.0))
    f = _sigmoid(z_f + tl.load(gates + hidden + unit, mask=valid, other=0.0))
    g = _tanh(z_g + tl.load(gates + 2 * hidden + unit, mask=valid, other=0.0))
    o = _sigmoid(z_o + tl.load(gates + 3 * hidden + unit, mask=valid, other=0.0))
    c = f * c_before + i * g
    h = o * _tanh(c)
    # Fewer units than threads: several warps load the same x half, one of them writes over it. All must have read it.
    tl.debug_barrier()
    tl.store(gates + unit, i, mask=valid)
    tl.store(gates + hidden + unit, f, mask=valid)
    tl.store(gates + 2 * hidden + unit, g, mask=valid)
    tl.store(gates + 3 * hidden + unit, o, mask=valid)
    tl.store(cells + unit, c, mask=valid)
    tl.store(states + unit, h, mask=valid)
    return c, tl.where(valid, h, 0.0)


@triton.jit
def lstm(table, state, HIDDEN: tl.constexpr):
    """The recurrence over depth. Grid: stages. Finds the x half of the gates in ``state``, leaves the gates there.

    For narrow stages, whose recurrent weights fit the registers: nothing is read twice.
    """
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    weight = _address(row, WEIGHT)
    gates = state + _integer(row - WIDTH, TARGET)
    cells = state + _integer(row, TARGET)
    states = state + _integer(row, SOURCE)
    unit = tl.arange(0, HIDDEN)
    w_i, w_f, w_g, w_o = _matrices(weight, unit, unit, hidden)
    c = tl.zeros([HIDDEN], tl.float32)
    h = tl.zeros([HIDDEN], tl.float32)
    for site in range(0, _integer(row, LENGTH)):
        z_i = tl.sum(w_i * h[None, :], 1)
        z_f = tl.sum(w_f * h[None, :], 1)
        z_g = tl.sum(w_g * h[None, :], 1)
        z_o = tl.sum(w_o * h[None, :], 1)
        place = site * hidden
        c, h = _cell(gates + 4 * place, cells + place, states + place, unit, hidden, z_i, z_f, z_g, z_o, c)


@triton.jit(do_not_specialize=["site"])
def lstm_site(table, state, site, BLOCK_U: tl.constexpr, HIDDEN: tl.constexpr):
    """One site of the recurrence, for wide stages: a launch per site, many blocks each. Grid: stages, blocks of units.

    One block for a whole wide stage would leave the device idle; blocks that wait for each other could wait for ever.
    """
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    if (site < _integer(row, LENGTH)) & (tl.program_id(1) * BLOCK_U < hidden):
        weight = _address(row, WEIGHT)
        place = site * hidden
        gates = state + _integer(row - WIDTH, TARGET) + 4 * place
        cells = state + _integer(row, TARGET) + place
        states = state + _integer(row, SOURCE) + place
        unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
        k = tl.arange(0, HIDDEN)
        h = tl.load(states - hidden + k, mask=_not_first(k, hidden, site), other=0.0)
        c = tl.load(cells - hidden + unit, mask=_not_first(unit, hidden, site), other=0.0)
        z_i = tl.sum(_matrix(weight, 0, unit, k, hidden) * h[None, :], 1)
        z_f = tl.sum(_matrix(weight, 1, unit, k, hidden) * h[None, :], 1)
        z_g = tl.sum(_matrix(weight, 2, unit, k, hidden) * h[None, :], 1)
        z_o = tl.sum(_matrix(weight, 3, unit, k, hidden) * h[None, :], 1)
        _cell(gates, cells, states, unit, hidden, z_i, z_f, z_g, z_o, c)


@triton.jit
def _cell_backward(gates, cells, target, unit, hidden, site, dh, dc):
    """Gradients of one site's gates before their activations, kept and handed on, and dc for the site before."""
    valid = unit < hidden
    i = tl.load(gates + unit, mask=valid, other=0.0)
    f = tl.load(gates + hidden + unit, mask=valid, other=0.0)
    g = tl.load(gates + 2 * hidden + unit, mask=valid, other=0.0)
    o = tl.load(gates + 3 * hidden + unit, mask=valid, other=0.0)
    tanh_c = _tanh(tl.load(cells + unit, mask=valid, other=0.0))
    c_before = tl.load(cells - hidden + unit, mask=_not_first(unit, hidden, site), other=0.0)
    dc += dh * o * (1 - tanh_c * tanh_c)
    d_i = dc * g * i * (1 - i)
    d_f = dc * c_before * f * (1 - f)
    d_g = dc * i * (1 - g * g)
    d_o = dh * tanh_c * o * (1 - o)
    tl.store(target + unit, d_i, mask=valid)
    tl.store(target + hidden + unit, d_f, mask=valid)
    tl.store(target + 2 * hidden + unit, d_g, mask=valid)
    tl.store(target + 3 * hidden + unit, d_o, mask=valid)
    return d_i, d_f, d_g, d_o, dc * f


@triton.jit
def lstm_backward(table, state, gradient, HIDDEN: tl.constexpr):
    """The recurrence backwards. ``gradient`` has the layout of ``state`` and holds dh from the outputs; gets dgates."""
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    length = _integer(row, LENGTH)
    weight = _address(row, WEIGHT)
    gates = _integer(row - WIDTH, TARGET)
    cells = state + _integer(row, TARGET)
    states = gradient + _integer(row, SOURCE)
    unit = tl.arange(0, HIDDEN)
    w_i, w_f, w_g, w_o = _matrices(weight, unit, unit, hidden)
    d_i = tl.zeros([HIDDEN], tl.float32)
    d_f = tl.zeros([HIDDEN], tl.float32)
    d_g = tl.zeros([HIDDEN], tl.float32)
    d_o = tl.zeros([HIDDEN], tl.float32)
    dc = tl.zeros([HIDDEN], tl.float32)
    for step in range(0, length):
        site = length - 1 - step
        place = site * hidden
        dh = tl.load(states + place + unit, mask=unit < hidden, other=0.0)
        dh += tl.sum(w_i * d_i[:, None] + w_f * d_f[:, None] + w_g * d_g[:, None] + w_o * d_o[:, None], 0)
        place4 = gates + 4 * place
        d_i, d_f, d_g, d_o, dc = _cell_backward(
            state + place4, cells + place, gradient + place4, unit, hidden, site, dh, dc
        )


@triton.jit
def _sent_back(weight, later, gate, unit, k, hidden, step):
    """What one gate of the next site sends back to some units of this site."""
    z = tl.load(later + gate * hidden + k, mask=_not_first(k, hidden, step), other=0.0)
    return tl.sum(_matrix(weight, gate, k, unit, hidden) * z[:, None], 0)


@triton.jit(do_not_specialize=["step"])
def lstm_site_backward(table, state, gradient, step, BLOCK_U: tl.constexpr, HIDDEN: tl.constexpr):
    """One site of the recurrence backwards, ``step`` sites before the last. Grid: stages, blocks of units.

    The cell's part of ``gradient`` carries dc from site to site.
    """
    row = table + (tl.program_id(0) * MATRICES + GATES_H) * WIDTH
    hidden = _integer(row, COLUMNS)
    length = _integer(row, LENGTH)
    if (step < length) & (tl.program_id(1) * BLOCK_U < hidden):
        weight = _address(row, WEIGHT)
        site = length - 1 - step
        place = site * hidden
        gates = _integer(row - WIDTH, TARGET) + 4 * place
        cells = _integer(row, TARGET) + place
        later = gradient + gates + 4 * hidden
        unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
        valid = unit < hidden
        k = tl.arange(0, HIDDEN)
        dh = tl.load(gradient + _integer(row, SOURCE) + place + unit, mask=valid, other=0.0)
        for gate in tl.static_range(4):
            dh += _sent_back(weight, later, gate, unit, k, hidden, step)
        carried = gradient + cells + unit
        dc = tl.load(carried + hidden, mask=_not_first(unit, hidden, step), other=0.0)
        _, _, _, _, dc = _cell_backward(state + gates, state + cells, gradient + gates, unit, hidden, site, dh, dc)
        tl.store(carried, dc, mask=valid)


@triton.jit
def scale(table, steps, out, BLOCK: tl.constexpr):
    """Step sizes into the parameters that they enter, all sites in one launch. Grid: sites, blocks of channels."""
    row = table + tl.program_id(0) * SCALE_WIDTH
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < _integer(row, 1)
    dt = tl.load(steps + _integer(row, 0) + channel, mask=inside, other=0.0)
    first = _integer(row, 2)
    for entry in range(first, first + _integer(row, 3)):
        entry_row = table + entry * SCALE_WIDTH
        parameter = tl.load(_address(entry_row, 0) + channel, mask=inside, other=0.0)
        tl.store(out + _integer(entry_row, 1) + channel, parameter * dt, mask=inside)


@triton.jit
def scale_backward(table, steps, gradient, parameter_gradients, step_gradients, BLOCK: tl.constexpr):
    """Gradients of the parameters and of the step sizes. Grid: sites, blocks of channels."""
    row = table + tl.program_id(0) * SCALE_WIDTH
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < _integer(row, 1)
    dt = tl.load(steps + _integer(row, 0) + channel, mask=inside, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    first = _integer(row, 2)
    for entry in range(first, first + _integer(row, 3)):
        entry_row = table + entry * SCALE_WIDTH
        place = _integer(entry_row, 1) + channel
        g = tl.load(gradient + place, mask=inside, other=0.0)
        total += g * tl.load(_address(entry_row, 0) + channel, mask=inside, other=0.0)
        tl.store(parameter_gradients + place, g * dt, mask=inside)
    tl.store(step_gradients + _integer(row, 0) + channel, total, mask=inside)
