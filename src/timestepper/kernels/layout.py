"""Where everything lies: the controllers of all stages share a few flat buffers, and one table says where.

One kernel launch works on all stages of a network. It finds its matrices by a table of integers on the device: the
addresses of the parameters, which do not move, and offsets into the flat buffers.

    described   per stage (L, D)                          what describes each site
    state       per stage x (L, H), gates (L, 4H), cell (L, H), hidden (L, H); its gradient has the same layout
    steps       per stage (L, C)                          step sizes
    gradient    per stage the seven parameters in the order of their definition
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

# The four matrices of a controller, in the order of their rows in the table.
INPUT, GATES_X, GATES_H, OUTPUT = range(4)
MATRICES = 4
# Columns of the table. Each row is one affine map "source (L, K) -> target (L, N)" of one stage.
WEIGHT, BIAS, LENGTH, ROWS, COLUMNS, SOURCE, TARGET, WEIGHT_GRADIENT, BIAS_GRADIENT, FIRST_TILE = range(10)
WIDTH = 10
TILE = (32, 64)  # rows and columns of one block in the gradients of the matrices
SCALE_WIDTH = 4  # of a row in the table of parameters that step sizes enter


@dataclass(frozen=True)
class Layout:
    """Offsets that follow from the shapes (L, D, C, H) of all stages."""

    shapes: tuple[tuple[int, int, int, int], ...]

    @cached_property
    def described(self) -> list[int]:
        return _offsets([length * d for length, d, _, _ in self.shapes])

    @cached_property
    def state(self) -> list[int]:
        return _offsets([7 * length * hidden for length, _, _, hidden in self.shapes])

    @cached_property
    def steps(self) -> list[int]:
        return _offsets([length * channels for length, _, channels, _ in self.shapes])

    @cached_property
    def parameter_sizes(self) -> list[int]:
        """Elements of each parameter: input weight and bias, gates' x, h and bias, output weight and bias."""
        return [size for _, d, c, h in self.shapes for size in (h * d, h, 4 * h * h, 4 * h * h, 4 * h, c * h, c)]

    @cached_property
    def parameters(self) -> list[int]:
        return _offsets(self.parameter_sizes)

    @property
    def depth(self) -> int:
        return max(length for length, _, _, _ in self.shapes)

    @cached_property
    def matrices(self) -> list[tuple[tuple[int, int], ...]]:
        """N and K of the four matrices of each stage."""
        return [((h, d), (4 * h, h), (4 * h, h), (c, h)) for _, d, c, h in self.shapes]

    def extent(self, matrix: int) -> tuple[int, int]:
        """The largest N and K that any stage has for a matrix."""
        n, k = zip(*(stage[matrix] for stage in self.matrices), strict=True)
        return max(n), max(k)

    @cached_property
    def tiles(self) -> list[int]:
        """Where each matrix's tiles begin, four matrices per stage, and the total."""
        return _offsets([-(-n // TILE[0]) * -(-k // TILE[1]) for stage in self.matrices for n, k in stage])

    def rows(self, addresses: list[int]) -> list[list[int]]:
        """The table: four rows per stage, in the order of the matrices."""
        rows: list[list[int]] = []
        for stage, (length, d, c, h) in enumerate(self.shapes):
            w_in, b_in, w_x, w_h, b, w_out, b_out = addresses[7 * stage : 7 * stage + 7]
            g_in, g_b_in, g_x, g_h, g_b, g_out, g_b_out = self.parameters[7 * stage : 7 * stage + 7]
            x = self.state[stage]
            gates, cell, hidden = x + length * h, x + 5 * length * h, x + 6 * length * h
            rows += [
                [w_in, b_in, length, h, d, self.described[stage], x, g_in, g_b_in],
                [w_x, b, length, 4 * h, h, x, gates, g_x, g_b],
                [w_h, b, length, 4 * h, h, hidden, cell, g_h, g_b],
                [w_out, b_out, length, c, h, hidden, self.steps[stage], g_out, g_b_out],
            ]
        return [[*row, tile] for row, tile in zip(rows, self.tiles, strict=False)]


@lru_cache(maxsize=256)
def layout(shapes: tuple[int, ...]) -> Layout:
    """The layout for L, D, C, H of each stage, given as one flat tuple."""
    return Layout(tuple(zip(shapes[0::4], shapes[1::4], shapes[2::4], shapes[3::4], strict=True)))


def power_of_two(size: int, least: int, most: int = 1 << 20) -> int:
    """The next power of two within bounds: the size of a block."""
    return min(most, max(least, 1 << (size - 1).bit_length()))


def _offsets(sizes: list[int]) -> list[int]:
    """Where each part begins, and the total at the end."""
    return list(accumulate(sizes, initial=0))


def scale_rows(addresses: list[int], sizes: list[int], places: list[int]) -> list[tuple[int, int, int, int]]:
    """The table of the parameters that step sizes enter: a row for every site, then one for every parameter.

    Site: where its step sizes begin, how many, its first parameter's row, how many. Parameter: address, offset.
    ``places`` says for each parameter where its step sizes begin; those of one site follow each other.
    """
    sites = Counter(zip(places, sizes, strict=True))  # in order, with the number of parameters of each
    offsets = _offsets(sizes)
    first = len(sites)
    rows = []
    for (place, size), count in sites.items():
        rows.append((place, size, first, count))
        first += count
    return rows + [(address, offset, 0, 0) for address, offset in zip(addresses, offsets, strict=False)]
