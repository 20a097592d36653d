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
        outline = self._path([*low, *reversed(high)])
        self.parts.append(f'<polygon class="band {css}" points="{outline}"/>')

    def dot(self, point: Point, css: str, low: float | None = None, high: float | None = None) -> None:
        """A mark, with a bar from ``low`` to ``high`` where there is a spread."""
        x, y = self._place(point)
        if low is not None and high is not None:
            top, bottom = self._place((point[0], high))[1], self._place((point[0], low))[1]
            self.parts.append(f'<line class="bar {css}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
        self.parts.append(f'<circle class="dot {css}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')

    def svg(self, title: str, description: str, x_ticks: Sequence[float] | None = None) -> str:
        """The finished drawing."""
        frame = []
        for value, label in _ticks(self.y, self.log_y):
            y = self._place((self.x[0], value))[1]
            frame.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            frame.append(f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{label}</text>')
        ticks = [(value, f"{value:g}") for value in x_ticks] if x_ticks else _ticks(self.x, self.log_x)
        for value, label in ticks:
            x = self._place((value, self.y[0]))[0]
            frame.append(f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}">{label}</text>')
        middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
        frame.append(f'<text class="axis middle" x="{middle_x}" y="{HEIGHT - 4}">{escape(self.x_label)}</text>')
        turned = f'transform="rotate(-90 11 {middle_y})"'
        frame.append(f'<text class="axis middle" x="11" y="{middle_y}" {turned}>{escape(self.y_label)}</text>')
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
    left, width = 62.0, (WIDTH - 62.0 - RIGHT) / len(rows[0])
    height = cell * len(rows) + 30
    shades: dict[int, list[str]] = {}
    for number, row in enumerate(rows):
        for place, value in enumerate(row):
            shade = round(min(max(value, 0.0), 1.0) * _SHADES)
            corner = f"M{left + place * width:.1f} {number * cell:.1f}"
            shades.setdefault(shade, []).append(f"{corner}h{width:.1f}v{cell:.1f}h-{width:.1f}z")
    parts = [
        f'<path class="heat" fill-opacity="{shade / _SHADES:.2f}" d="{"".join(cells)}"/>'
        for shade, cells in sorted(shades.items())
    ]
    frame = f'<rect class="frame" x="{left}" y="0" width="{WIDTH - left - RIGHT:.1f}" height="{cell * len(rows):.1f}"/>'
    parts.append(frame)
    for number, name in enumerate(names):
        if name:
            y = (number + 0.5) * cell + 4
            parts.append(f'<text class="tick end" x="{left - 6}" y="{y:.1f}">{escape(name)}</text>')
    y = cell * len(rows) + 16
    parts.append(f'<text class="tick" x="{left}" y="{y:.1f}">{escape(x_ends[0])}</text>')
    parts.append(f'<text class="tick end" x="{WIDTH - RIGHT}" y="{y:.1f}">{escape(x_ends[1])}</text>')
    parts.append(f'<text class="axis middle" x="{(left + WIDTH - RIGHT) / 2}" y="{y:.1f}">{escape(x_label)}</text>')
    return wrap(WIDTH, math.ceil(height), "".join(parts), title, text)


def forest(
    rows: Sequence[tuple[str, float, float | None, float | None]], ends: Point, x_label: str, title: str, text: str
) -> str:
    """Differences with their intervals, one under the other, and a line at zero. Rows: label, mean, low, high.

    What lies beyond the ends is cut off there: a bar ends in an arrow, and a mean beyond them is a larger one.
    """
    span = _widen(ends, False)
    pitch, top = 40, 6
    bottom = top + pitch * len(rows)
    height = bottom + 40

    def place(value: float) -> float:
        return 10 + min(max(_scale(value, span, False), 0.0), 1.0) * (WIDTH - 20)

    parts = []
    for value, label in _ticks(span, False):
        x = place(value)
        css = "zero" if value == 0 else "grid"
        parts.append(f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{bottom + 16}">{label}</text>')
    for number, (label, mean, low, high) in enumerate(rows):
        y = top + number * pitch + 28
        parts.append(f'<text class="row" x="10" y="{y - 11}">{escape(label)}</text>')
        if low is not None and high is not None and low <= span[1] and high >= span[0]:
            parts.append(f'<line class="whisker" x1="{place(low):.1f}" x2="{place(high):.1f}" y1="{y}" y2="{y}"/>')
            cut = [end for end, is_cut in ((low, low < span[0] <= mean), (high, mean <= span[1] < high)) if is_cut]
            parts += [_arrow(place(end), y, 4 if end > mean else -4, "cut") for end in cut]
        if span[0] <= mean <= span[1]:
            parts.append(f'<circle class="dot stepped" cx="{place(mean):.1f}" cy="{y}" r="4.5"/>')
        else:
            parts.append(_arrow(place(mean), y, 7 if mean > span[1] else -7, "beyond"))
    parts.append(f'<text class="axis middle" x="{WIDTH / 2}" y="{height - 6}">{escape(x_label)}</text>')
    return wrap(WIDTH, height, "".join(parts), title, text)


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
        every = math.ceil(len(values) / 6)
        return [(value, f"{value:g}") for value in values[::every]]
    raw = (high - low) / 4
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(step * base for step in (1, 2, 2.5, 5, 10) if step * base >= raw)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    values = [(first + number) * step for number in range(count)]
    return [(value, f"{value:.10g}".replace("-", MINUS)) for value in values]
