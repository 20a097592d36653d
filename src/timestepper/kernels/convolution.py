"""3x3 convolutions of few channels by kernels of our own, as operators that PyTorch can differentiate and compile.

``timestepper::conv3x3`` and its two gradients: stride 1, padding 1, channels-last bf16 on CUDA. A bias is added by
PyTorch, where a compiler can fuse it. Elsewhere the operators run PyTorch's convolution, which is also what the kernels
are tested against.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from timestepper.kernels.layout import power_of_two
from timestepper.kernels.ops import INTERPRETED

DEVICES = ("cuda",)
WIDEST = 64  # beyond this the library's kernels have enough to do


class Blocks(NamedTuple):
    """How a kernel divides its work; see triton_convolution.py."""

    pixels: int  # of one row of the matrix product
    span: int  # pixels in a piece of a window
    together: int  # pieces that are loaded at once
    rows: int
    outputs: int
    warps: int
    slices: int = 1  # of the pixels, for the weight gradient
    held: bool = True  # loaded tiles wait in registers
    stages: int = 1  # for the weight gradient: above 1 the rows to come are loaded meanwhile, past the L1 cache

    @property
    def in_kernel(self) -> tuple[int, int, int, int, bool]:
        """What both kernels are told last; the interpreter knows no assembly, which holds a tile."""
        return self.rows, self.pixels, self.span, self.together, self.held and not INTERPRETED


# By input channels, rounded up to a power of two; the best at batch 128 on an H200 (benchmarks/convolution.py).
CONVOLVE = {
    16: Blocks(2, 4, 3, 64, 16, 4),
    32: Blocks(1, 1, 9, 64, 32, 4, held=False),
    64: Blocks(1, 1, 3, 64, 64, 4, held=False),
}
WEIGHT_GRADIENT = {
    16: Blocks(2, 4, 1, 64, 16, 4, 132),
    32: Blocks(1, 2, 2, 64, 32, 4, 44, held=False, stages=3),
    64: Blocks(1, 1, 1, 64, 64, 4, 8, held=False, stages=3),
}


def speed_up(model: nn.Module) -> int:
    """Let the model's 3x3 convolutions of few channels run the kernels where they can; says how many there are.

    A layer keeps its class, parameters and keys: it only gets another ``_conv_forward``, a function that can be copied.
    """
    layers = [module for module in model.modules() if _suits(module)]
    for layer in layers:
        layer.__dict__["_conv_forward"] = _forward
    return len(layers)


def _suits(layer: nn.Module) -> bool:
    return (
        isinstance(layer, nn.Conv2d)
        and type(layer)._conv_forward is nn.Conv2d._conv_forward  # a stepped layer's, too
        and (layer.kernel_size, layer.stride, layer.padding, layer.dilation) == ((3, 3), (1, 1), (1, 1), (1, 1))
        and (layer.groups, layer.padding_mode) == (1, "zeros")
        and all(c % 16 == 0 and c <= WIDEST for c in (layer.in_channels, layer.out_channels))
    )


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.dim() == 4 and x.device.type in DEVICES and torch.is_autocast_enabled(x.device.type):
        precision = torch.get_autocast_dtype(x.device.type)
        if precision == torch.bfloat16:
            convolved = conv3x3(x.to(precision), weight.to(precision))
            return convolved if bias is None else convolved + bias.to(precision)[:, None, None]
    return F.conv2d(x, weight, bias, padding=1)


# -- operators ---------------------------------------------------------------------------------------------------------


def _by_kernel(x: Tensor) -> bool:
    """Offsets are 32 bits wide, and no images need no kernel. The interpreter multiplies no bf16, but float32."""
    right = x.dtype == (torch.float32 if INTERPRETED else torch.bfloat16)
    return (x.is_cuda or INTERPRETED) and right and 0 < x.numel() * WIDEST // x.shape[1] < 2**31


def library_gradient(gradient: Tensor, x: Tensor, weight: Tensor, which: int) -> Tensor:
    """PyTorch's gradient of the images (0) or of the weight (1)."""
    mask = [which == 0, which == 1, False]
    one = [1, 1]
    return torch.ops.aten.convolution_backward(gradient, x, weight, None, one, one, one, False, [0, 0], 1, mask)[which]


def _images(x: Tensor, channels: int) -> Tensor:
    """Memory for channels-last images of another number of channels."""
    shape = (x.shape[0], channels, *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("timestepper::conv3x3", mutates_args=())
def conv3x3(x: Tensor, weight: Tensor) -> Tensor:
    """The images convolved with the weight."""
    if not _by_kernel(x):
        return F.conv2d(x, weight, padding=1).contiguous(memory_format=torch.channels_last)
    return launch_convolve(x, weight)


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return _images(x, weight.shape[0])


@torch.library.custom_op("timestepper::conv3x3_input_gradient", mutates_args=())
def conv3x3_input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the images."""
    if not _by_kernel(gradient):
        x = _images(gradient, weight.shape[1])
        return library_gradient(gradient, x, weight, 0).contiguous(memory_format=torch.channels_last)
    return launch_convolve(gradient, weight, backwards=True)


@conv3x3_input_gradient.register_fake
def _(gradient: Tensor, weight: Tensor) -> Tensor:
    return _images(gradient, weight.shape[1])


@torch.library.custom_op("timestepper::conv3x3_weight_gradient", mutates_args=())
def conv3x3_weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weight, in the weight's precision and layout, bit for bit the same every time."""
    if not _by_kernel(x):
        return torch.empty_like(weight).copy_(library_gradient(gradient, x, weight, 1))
    return launch_weight_gradient(gradient, x, weight)


@conv3x3_weight_gradient.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return torch.empty_like(weight)


def _context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, gradient: Tensor):
    x, weight = ctx.saved_tensors
    gradient = gradient.contiguous(memory_format=torch.channels_last)  # here, where a compiler can fuse it
    return (
        conv3x3_input_gradient(gradient, weight) if ctx.needs_input_grad[0] else None,
        conv3x3_weight_gradient(gradient, x, weight) if ctx.needs_input_grad[1] else None,
    )


conv3x3.register_autograd(_backward, setup_context=_context)


# -- launches ----------------------------------------------------------------------------------------------------------


def launch_convolve(x: Tensor, weight: Tensor, backwards: bool = False, blocks: Blocks | None = None) -> Tensor:
    """The convolution, or ``backwards`` its input gradient: the same with taps backwards and channels exchanged."""
    from timestepper.kernels.triton_convolution import convolve

    x = x.contiguous(memory_format=torch.channels_last)  # nearly always is
    outputs, inputs, down, right = weight.stride()
    strides = (2 * (down + right), inputs, outputs, -down, -right) if backwards else (0, *weight.stride())
    target = _images(x, weight.shape[1 if backwards else 0])
    block_in = power_of_two(x.shape[1], 16)
    blocks = blocks or CONVOLVE[block_in]
    rows, block_out = _rows(x, blocks.pixels), _divisor(target.shape[1], blocks.outputs)
    with torch.cuda.device_of(x):
        convolve[(-(-rows // blocks.rows), target.shape[1] // block_out)](
            *(x, weight, target, rows, *x.shape[2:], x.shape[1], target.shape[1], *strides, block_in, block_out),
            *blocks.in_kernel,
            num_warps=blocks.warps,
        )
    return target


def launch_weight_gradient(gradient: Tensor, x: Tensor, weight: Tensor, blocks: Blocks | None = None) -> Tensor:
    """Partial sums over slices of the pixels, and their sum."""
    from timestepper.kernels.triton_convolution import add_slices, weight_gradient

    x, gradient = (images.contiguous(memory_format=torch.channels_last) for images in (x, gradient))
    outputs, inputs = weight.shape[:2]
    block_in = power_of_two(inputs, 16)
    blocks = blocks or WEIGHT_GRADIENT[block_in]
    rows, block_out = _rows(x, blocks.pixels), _divisor(outputs, blocks.outputs)
    pieces = 3 * -(-(blocks.pixels + 2) // blocks.span)
    each = -(-rows // (blocks.rows * blocks.slices))  # blocks of rows in a slice
    slices = -(-rows // (blocks.rows * each))
    partial = x.new_empty((slices, pieces, blocks.span * block_in, blocks.pixels * outputs), dtype=torch.float32)
    out = torch.empty_like(weight)
    with torch.cuda.device_of(x):
        weight_gradient[(pieces // blocks.together, outputs // block_out, slices)](
            *(x, gradient, partial, rows, each, *x.shape[2:], inputs, outputs, block_in, block_out),
            *blocks.in_kernel,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
        )
        block_out = _divisor(outputs, WIDEST)
        add_slices[(9 * inputs, outputs // block_out)](
            *(partial, out, slices, inputs, outputs, *out.stride(), block_in, block_out, blocks.pixels, blocks.span),
            BLOCK_SLICES=power_of_two(slices, 16, 1024 // block_out),
        )
    return out


def _rows(x: Tensor, pixels: int) -> int:
    """Rows of the matrix product: groups of so many pixels, the last of a line perhaps not full."""
    return x.shape[0] * x.shape[2] * -(-x.shape[3] // pixels)


def _divisor(channels: int, most: int) -> int:
    """The largest power of two that divides the channels, ``most`` or less."""
    return min(most, channels & -channels)
