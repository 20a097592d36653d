"""Triton kernels of 3x3 convolutions with few channels: images in NHWC, bf16 in and out, float32 sums.

A convolution is a matrix product whose left side is gathered. One row of it stands for PIXELS neighbouring pixels of
an image line. Its window, the PIXELS + 2 pixels around them, is contiguous in memory, in the line itself and in those
above and below; the product goes through these three lines in pieces of SPAN pixels. With one pixel per row and per
piece, a piece is one of the nine taps. With two pixels per row, 16 channels fill the tensor cores and a pixel is read
six times instead of nine; the price is a matrix of weights with blocks of zeros: pixel p of a row sees column i of
its window through tap i - p, where there is one.

Loops over pieces are unrolled, and TOGETHER pieces are loaded before the first is multiplied. Loads go through the L1
cache, which serves the overlap of the windows; those of a pipelined loop would go past it.
"""

# A tuple grows by + in a kernel: Triton has no star, and a type checker no type for it.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment"

import triton
import triton.language as tl


@triton.jit
def _held(tile, HELD: tl.constexpr):
    """The tile itself, kept in registers up to here by an instruction that Triton cannot look into.

    Else it moves each tile to shared memory as soon as it has arrived, and loads the next one only then.
    """
    if HELD:
        return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [tile], tile.dtype, is_pure=False, pack=2)
    else:
        return tile


@triton.jit
def _rows(first, BLOCK_ROWS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr):
    """Number, image line, line within the image and first pixel of the rows from ``first`` on."""
    GROUPS: tl.constexpr = (WIDTH + PIXELS - 1) // PIXELS
    row = (first + tl.arange(0, BLOCK_ROWS)).to(tl.uint32)  # unsigned divisions take fewer instructions
    line = row // GROUPS
    return row.to(tl.int32), line.to(tl.int32), (line % HEIGHT).to(tl.int32), (row % GROUPS).to(tl.int32) * PIXELS


@triton.jit
def _window(
    source,
    line,
    y,
    x,
    valid,
    piece,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """A piece of each row's window, zero outside of the image: (rows, SPAN * BLOCK)."""
    PIECES: tl.constexpr = (PIXELS + 1 + SPAN) // SPAN
    down = piece // PIECES - 1
    start = piece % PIECES * SPAN
    k = tl.arange(0, SPAN * BLOCK)
    column = k // BLOCK
    sideways = x[:, None] + (column + (start - 1))[None, :]
    inside = (valid & (y + down >= 0) & (y + down < HEIGHT))[:, None] & (sideways >= 0) & (sideways < WIDTH)
    if PIECES * SPAN != PIXELS + 2:
        inside = inside & (column + start < PIXELS + 2)[None, :]
    if BLOCK != CHANNELS:
        inside = inside & (k % BLOCK < CHANNELS)[None, :]
    place = source + ((line * WIDTH + x) * CHANNELS)[:, None] + (column * CHANNELS + k % BLOCK)[None, :]
    return tl.load(place + (down * WIDTH + start - 1) * CHANNELS, mask=inside, other=0.0)


@triton.jit
def _pixels(
    line,
    x,
    valid,
    block,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """Where a block of channels of each row's own pixels lies, and which of it is there: (rows, PIXELS * BLOCK)."""
    n = tl.arange(0, PIXELS * BLOCK)
    inside = valid[:, None] & (x[:, None] + (n // BLOCK)[None, :] < WIDTH)
    within = n // BLOCK * CHANNELS + block * BLOCK + n % BLOCK
    return ((line * WIDTH + x) * CHANNELS)[:, None] + within[None, :], inside


@triton.jit(do_not_specialize=["rows"])
def convolve(
    source,
    weight,
    target,
    rows,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ORIGIN: tl.constexpr,
    OUTPUT_STRIDE: tl.constexpr,
    INPUT_STRIDE: tl.constexpr,
    DOWN_STRIDE: tl.constexpr,
    RIGHT_STRIDE: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    SPAN: tl.constexpr,
    TOGETHER: tl.constexpr,
    HELD: tl.constexpr,
):
    """target = source * weight. Grid: blocks of rows, blocks of output channels.

    The weight is read through its strides: taps backwards and channels exchanged, this is the input's gradient.
    """
    PIECES: tl.constexpr = (PIXELS + 1 + SPAN) // SPAN
    row, line, y, x = _rows(tl.program_id(0) * BLOCK_ROWS, BLOCK_ROWS, HEIGHT, WIDTH, PIXELS)
    valid = row < rows
    k = tl.arange(0, SPAN * BLOCK_IN)
    n = tl.arange(0, PIXELS * BLOCK_OUT)
    channel = tl.program_id(1) * BLOCK_OUT + n % BLOCK_OUT
    tap = (k // BLOCK_IN)[:, None] - (n // BLOCK_OUT)[None, :]
    matrix = weight + (k % BLOCK_IN * INPUT_STRIDE)[:, None] + (channel * OUTPUT_STRIDE)[None, :] + tap * RIGHT_STRIDE
    total = tl.zeros([BLOCK_ROWS, PIXELS * BLOCK_OUT], tl.float32)
    for first in tl.static_range(0, 3 * PIECES, TOGETHER):
        windows = ()
        matrices = ()
        for piece in tl.static_range(first, first + TOGETHER):
            window = _window(source, line, y, x, valid, piece, HEIGHT, WIDTH, INPUTS, BLOCK_IN, PIXELS, SPAN)
            start = piece % PIECES * SPAN
            inside = (tap + start >= 0) & (tap + start < 3)
            if BLOCK_IN != INPUTS:
                inside = inside & (k % BLOCK_IN < INPUTS)[:, None]
            moved = ORIGIN + piece // PIECES * DOWN_STRIDE + start * RIGHT_STRIDE
            windows = windows + (window,)
            matrices = matrices + (tl.load(matrix + moved, mask=inside, other=0.0),)
        for i in tl.static_range(TOGETHER):
            total = tl.dot(_held(windows[i], HELD), _held(matrices[i], HELD), total)
    place, inside = _pixels(line, x, valid, tl.program_id(1), WIDTH, OUTPUTS, BLOCK_OUT, PIXELS)
    tl.store(target + place, total.to(target.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "blocks"])
def weight_gradient(
    source,
    gradient,
    partial,
    rows,
    blocks,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    PIXELS: tl.constexpr,
    SPAN: tl.constexpr,
    TOGETHER: tl.constexpr,
    HELD: tl.constexpr,
):
    """window^T gradient, for TOGETHER pieces and a slice of ``blocks`` blocks of rows.

    Grid: groups of pieces, blocks of output channels, slices. Sums are kept as they come, and add_slices finds the
    taps in them: (slice, piece, SPAN * BLOCK_IN, PIXELS * OUTPUTS).
    """
    PIECES: tl.constexpr = (PIXELS + 1 + SPAN) // SPAN
    K: tl.constexpr = SPAN * BLOCK_IN
    N: tl.constexpr = PIXELS * BLOCK_OUT
    totals = ()
    for _ in tl.static_range(TOGETHER):
        totals = totals + (tl.zeros([K, N], tl.float32),)
    start = tl.program_id(2) * blocks
    for block in range(start, start + blocks):
        row, line, y, x = _rows(block * BLOCK_ROWS, BLOCK_ROWS, HEIGHT, WIDTH, PIXELS)
        valid = row < rows
        place, inside = _pixels(line, x, valid, tl.program_id(1), WIDTH, OUTPUTS, BLOCK_OUT, PIXELS)
        g = tl.load(gradient + place, mask=inside, other=0.0)
        windows = ()
        for i in tl.static_range(TOGETHER):
            piece = tl.program_id(0) * TOGETHER + i
            window = _window(source, line, y, x, valid, piece, HEIGHT, WIDTH, INPUTS, BLOCK_IN, PIXELS, SPAN)
            windows = windows + (window,)
        g = _held(g, HELD)
        sums = ()
        for i in tl.static_range(TOGETHER):
            sums = sums + (tl.dot(tl.trans(_held(windows[i], HELD)), g, totals[i]),)
        totals = sums
    n = tl.arange(0, N)
    column = n // BLOCK_OUT * OUTPUTS + tl.program_id(1) * BLOCK_OUT + n % BLOCK_OUT
    for i in tl.static_range(TOGETHER):
        piece = tl.program_id(2) * (3 * PIECES) + tl.program_id(0) * TOGETHER + i
        place = (piece * K + tl.arange(0, K))[:, None] * (PIXELS * OUTPUTS) + column[None, :]
        tl.store(partial + place, totals[i])


@triton.jit(do_not_specialize=["slices"])
def add_slices(
    partial,
    out,
    slices,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    OUTPUT_STRIDE: tl.constexpr,
    INPUT_STRIDE: tl.constexpr,
    DOWN_STRIDE: tl.constexpr,
    RIGHT_STRIDE: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    PIXELS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK_SLICES: tl.constexpr,
):
    """The gradient of one tap and input channel: slices and pixels are added in the same order every time.

    Grid: taps and input channels, blocks of output channels.
    """
    PIECES: tl.constexpr = (PIXELS + 1 + SPAN) // SPAN
    channel = tl.program_id(0) % INPUTS
    down = tl.program_id(0) // INPUTS // 3
    right = tl.program_id(0) // INPUTS % 3
    output = tl.program_id(1) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    total = tl.zeros([BLOCK_SLICES, BLOCK_OUT], tl.float32)
    for first in range(0, slices, BLOCK_SLICES):
        number = first + tl.arange(0, BLOCK_SLICES)
        for pixel in tl.static_range(PIXELS):
            column = right + pixel
            row = (down * PIECES * SPAN + column) * BLOCK_IN + channel  # pieces of a line follow each other
            place = ((number * (3 * PIECES * SPAN * BLOCK_IN) + row) * (PIXELS * OUTPUTS) + pixel * OUTPUTS)[:, None]
            total += tl.load(partial + place + output[None, :], mask=(number < slices)[:, None], other=0.0)
    place = output * OUTPUT_STRIDE + channel * INPUT_STRIDE + down * DOWN_STRIDE + right * RIGHT_STRIDE
    tl.store(out + place, tl.sum(total, 0).to(out.dtype.element_ty))
