"""What the Triton kernels share: reading their tables, and two activations."""

import triton
import triton.language as tl


@triton.jit
def integer(row, column):
    return tl.load(row + column).to(tl.int32)


@triton.jit
def address(row, column):
    return tl.load(row + column).to(tl.pointer_type(tl.float32))


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """Accurate near zero too, where (1 - e) / (1 + e) cancels."""
    square = x * x
    series = x * (1 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    e = tl.exp(-2 * tl.abs(x))
    ratio = (1 - e) / (1 + e)
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0, -ratio, ratio))
