"""Triton kernels of the LSTM's recurrence over depth, forward and backward, all stages of a network in one launch.

Every product is done in full float32. ``table`` is described in layout.py.
"""

import triton
import triton.language as tl

from timestepper.kernels import layout
from timestepper.kernels.triton_basics import address, integer, sigmoid, tanh

WEIGHT = tl.constexpr(layout.WEIGHT)
LENGTH = tl.constexpr(layout.LENGTH)
COLUMNS = tl.constexpr(layout.COLUMNS)
SOURCE = tl.constexpr(layout.SOURCE)
TARGET = tl.constexpr(layout.TARGET)
WIDTH = tl.constexpr(layout.WIDTH)
MATRICES = tl.constexpr(layout.MATRICES)
GATES_H = tl.constexpr(layout.GATES_H)


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
    i = sigmoid(z_i + tl.load(gates + unit, mask=valid, other=0.0))
    f = sigmoid(z_f + tl.load(gates + hidden + unit, mask=valid, other=0.0))
    g = tanh(z_g + tl.load(gates + 2 * hidden + unit, mask=valid, other=0.0))
    o = sigmoid(z_o + tl.load(gates + 3 * hidden + unit, mask=valid, other=0.0))
    c = f * c_before + i * g
    h = o * tanh(c)
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
    hidden = integer(row, COLUMNS)
    weight = address(row, WEIGHT)
    gates = state + integer(row - WIDTH, TARGET)
    cells = state + integer(row, TARGET)
    states = state + integer(row, SOURCE)
    unit = tl.arange(0, HIDDEN)
    w_i, w_f, w_g, w_o = _matrices(weight, unit, unit, hidden)
    c = tl.zeros([HIDDEN], tl.float32)
    h = tl.zeros([HIDDEN], tl.float32)
    for site in range(0, integer(row, LENGTH)):
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
    hidden = integer(row, COLUMNS)
    if (site < integer(row, LENGTH)) & (tl.program_id(1) * BLOCK_U < hidden):
        weight = address(row, WEIGHT)
        place = site * hidden
        gates = state + integer(row - WIDTH, TARGET) + 4 * place
        cells = state + integer(row, TARGET) + place
        states = state + integer(row, SOURCE) + place
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
    tanh_c = tanh(tl.load(cells + unit, mask=valid, other=0.0))
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
    hidden = integer(row, COLUMNS)
    length = integer(row, LENGTH)
    weight = address(row, WEIGHT)
    gates = integer(row - WIDTH, TARGET)
    cells = state + integer(row, TARGET)
    states = gradient + integer(row, SOURCE)
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
    hidden = integer(row, COLUMNS)
    length = integer(row, LENGTH)
    if (step < length) & (tl.program_id(1) * BLOCK_U < hidden):
        weight = address(row, WEIGHT)
        site = length - 1 - step
        place = site * hidden
        gates = integer(row - WIDTH, TARGET) + 4 * place
        cells = integer(row, TARGET) + place
        later = gradient + gates + 4 * hidden
        unit = tl.program_id(1) * BLOCK_U + tl.arange(0, BLOCK_U)
        valid = unit < hidden
        k = tl.arange(0, HIDDEN)
        dh = tl.load(gradient + integer(row, SOURCE) + place + unit, mask=valid, other=0.0)
        for gate in tl.static_range(4):
            dh += _sent_back(weight, later, gate, unit, k, hidden, step)
        carried = gradient + cells + unit
        dc = tl.load(carried + hidden, mask=_not_first(unit, hidden, step), other=0.0)
        _, _, _, _, dc = _cell_backward(state + gates, state + cells, gradient + gates, unit, hidden, site, dh, dc)
        tl.store(carried, dc, mask=valid)
