"""Plots as inline SVG: small, styled by the page's colours, readable by a screen reader through title and description.

A plot is drawn for a width of 360 units, which is a phone's; wide screens show several side by side.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from html import escape

from timestepper.report.statistics import MINUS

WIDTH, HEIGHT = 360, 232
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 38
_SHADES = 24
_ids = itertools.count(1)

Point = tuple[float, float]


class Plot:
    """Lines, bands and marks over two axes; ``css`` names the series: plain, stepped or quiet."""

    def __init__(self, x: Point, y: Point, x_label: str, y_label: str, log_y: bool = False, log_x: bool = False):
        self.x_label, self.y_label = x_label, y_label
        self.log_x, self.log_y = log_x, log_y
        self.x, self.y = _widen(x, log_x), _widen(y, log_y)
        self.parts: list[str] = []

    def line(self, points: Iterable[Point], css: str) -> None:
        self.parts.append(f'<polyline class="line {css}" points="{self._path(points)}"/>')

    def band(self, low: Sequence[Point], high: Sequence[Point], css: str) -> None:
        self.parts.append(f'<polygon class="band {css}" points="{self._path([*low, *reversed(high)])}"/>')

    def dot(self, point: Point, css: str, bar: Point | None = None) -> None:
        """A mark, with a bar from end to end where there is a spread."""
        x, y = self._place(point)
        if bar is not None:
            bottom, top = (self._place((point[0], end))[1] for end in bar)
            self.parts.append(_line(f"bar {css}", (x, top), (x, bottom)))
        self.parts.append(f'<circle class="dot {css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')

    def svg(self, title: str, description: str, x_ticks: Sequence[float] | None = None) -> str:
        """The finished drawing."""
        frame = []
        for value, label in _ticks(self.y, self.log_y):
            y = self._place((self.x[0], value))[1]
            frame += [_line("grid", (LEFT, y), (WIDTH - RIGHT, y)), _text("tick end", LEFT - 6, y + 4, label)]
        ticks = [(value, f"{value:g}") for value in x_ticks] if x_ticks else _ticks(self.x, self.log_x)
        for value, label in ticks:
            frame.append(_text("tick middle", self._place((value, self.y[0]))[0], HEIGHT - BOTTOM + 16, label))
        middle = (TOP + HEIGHT - BOTTOM) / 2
        frame.append(_text("axis middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, self.x_label))
        frame.append(_text("axis middle", 11, middle, self.y_label, f' transform="rotate(-90 11 {middle})"'))
        return wrap(WIDTH, HEIGHT, "".join(frame + self.parts), title, description)

    def _place(self, point: Point) -> Point:
        across, up = _scale(point[0], self.x, self.log_x), _scale(point[1], self.y, self.log_y)
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def _path(self, points: Iterable[Point]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in map(self._place, points))


def heat_map(
    rows: Sequence[Sequence[float]], names: Sequence[str], x_label: str, x_ends: tuple[str, str], title: str, text: str
) -> str:
    """Values in 0..1 as the strength of one colour; ``names`` label some rows, empty strings none."""
    cell = max(1.0, min(16.0, 300 / len(rows)))
    left, right, bottom = 62.0, WIDTH - RIGHT, cell * len(rows)
    width = (right - left) / len(rows[0])
    shades: dict[int, list[str]] = {}
    for number, row in enumerate(rows):
        for place, value in enumerate(row):
            corner = f"M{left + place * width:.1f} {number * cell:.1f}"
            square = f"{corner}h{width:.1f}v{cell:.1f}h-{width:.1f}z"
            shades.setdefault(round(min(max(value, 0.0), 1.0) * _SHADES), []).append(square)
    parts = [
        f'<path class="heat" fill-opacity="{shade / _SHADES:.2f}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(shades.items())
    ]
    parts.append(f'<rect class="frame" x="{left}" y="0" width="{right - left:.1f}" height="{bottom:.1f}"/>')
    named = ((number, name) for number, name in enumerate(names) if name)
    parts += [_text("tick end", left - 6, (number + 0.5) * cell + 4, name) for number, name in named]
    parts.append(_text("tick", left, bottom + 16, x_ends[0]))
    parts.append(_text("tick end", right, bottom + 16, x_ends[1]))
    parts.append(_text("axis middle", (left + right) / 2, bottom + 16, x_label))
    return wrap(WIDTH, math.ceil(bottom + 30), "".join(parts), title, text)


def forest(rows: Sequence[tuple[str, float, Point]], ends: Point, x_label: str, title: str, text: str) -> str:
    """Differences with their intervals, one under the other, and a line at zero. Rows: label, mean, interval.

    What lies beyond the ends is cut off there: a bar ends in an arrow, and a mean beyond them is a larger one.
    """
    first, last = span = _widen(ends, False)
    bottom = 6 + 40 * len(rows)

    def place(value: float) -> float:
        return 10 + min(max(_scale(value, span, False), 0.0), 1.0) * (WIDTH - 20)

    parts = []
    for value, label in _ticks(span, False):
        x = place(value)
        parts.append(_line("grid" if value else "zero", (x, 6), (x, bottom)))
        parts.append(_text("tick middle", x, bottom + 16, label))
    for number, (label, mean, (low, high)) in enumerate(rows):
        y = 34 + 40 * number
        parts.append(_text("row", 10, y - 11, label))
        if low <= last and high >= first:
            parts.append(_line("whisker", (place(low), y), (place(high), y)))
            cut = [end for end, is_cut in ((low, low < first <= mean), (high, mean <= last < high)) if is_cut]
            parts += [_arrow(place(end), y, 4 if end > mean else -4, "cut") for end in cut]
        if first <= mean <= last:
            parts.append(f'<circle class="dot stepped" cx="{place(mean):.1f}" cy="{y}" r="4.5"/>')
        else:
            parts.append(_arrow(place(mean), y, 7 if mean > last else -7, "beyond"))
    parts.append(_text("axis middle", WIDTH / 2, bottom + 34, x_label))
    return wrap(WIDTH, bottom + 40, "".join(parts), title, text)


def _text(css: str, x: float, y: float, text: str, more: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}"{more}>{escape(text)}</text>'


def _line(css: str, start: Point, end: Point) -> str:
    return f'<line class="{css}" x1="{start[0]:.1f}" x2="{end[0]:.1f}" y1="{start[1]:.1f}" y2="{end[1]:.1f}"/>'


def _arrow(x: float, y: float, size: int, css: str) -> str:
    """An arrow head with its tip at x, to the right for a positive size."""
    back = x - 1.8 * size
    return f'<polygon class="dot stepped {css}" points="{x:.1f},{y} {back:.1f},{y - size} {back:.1f},{y + size}"/>'


def wrap(width: int, height: int, inner: str, title: str, description: str) -> str:
    """An accessible svg element around some drawing."""
    name = f"plot{next(_ids)}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{escape(title)}</title><desc id="{name}-d">{escape(description)}</desc>{inner}</svg>'
    )


def _widen(span: Point, log: bool) -> Point:
    """A span with room for the marks at its ends; never empty, and on a logarithmic axis above zero."""
    low, high = span
    if log:
        low = low if low > 0 else high / 1e3 if high > 0 else 1.0
        return low / 1.15, max(low, high) * 1.15
    room = 0.04 * (high - low) or abs(high) * 0.1 or 1.0
    return (low - room if low != 0 else low, high + room)


def _scale(value: float, span: Point, log: bool) -> float:
    low, high = span
    if log:
        return (math.log(max(value, low)) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _ticks(span: Point, log: bool) -> list[tuple[float, str]]:
    """Three to six round values inside a span."""
    low, high = span
    if log and high / low > 5:
        exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            values = [step * 10.0**exponent for exponent in exponents for step in steps]
            values = [value for value in values if low <= value <= high]
            if len(values) <= 6:
                break
        return [(value, f"{value:g}") for value in values[:: math.ceil(len(values) / 6)]]
    raw = (high - low) / 4
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(step * base for step in (1, 2, 2.5, 5, 10) if step * base >= raw)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [(number * step, f"{number * step:.10g}".replace("-", MINUS)) for number in numbers]
