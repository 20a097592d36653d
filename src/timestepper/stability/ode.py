"""Initial value problems: explicit Runge-Kutta methods with fixed and adaptive steps, and the paper's Figure 1.

A method is its table of numbers; the machinery below runs any explicit table on any right-hand side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from timestepper.equations import local_error, rkf_step_size
from timestepper.errors import StabilityError

Array = NDArray[np.float64]
RightHandSide = Callable[[float, Array], ArrayLike]


@dataclass(frozen=True)
class Tableau:
    """A Butcher tableau: row i of ``stages`` says how stage i uses the stages before it.

    ``weights`` make the solution of ``order`` that is carried on; ``embedded`` makes the one of order + 1 that
    estimates its error, where the method has one.
    """

    name: str
    order: int
    nodes: tuple[float, ...]
    stages: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    embedded: tuple[float, ...] | None = None

    def higher(self) -> "Tableau":
        """The embedded method of order + 1 as a method of its own."""
        if self.embedded is None:
            raise StabilityError(f"{self.name} has no embedded method; choose a tableau with one")
        return replace(self, name=f"{self.name}, higher", order=self.order + 1, weights=self.embedded, embedded=None)


EULER = Tableau("forward Euler", order=1, nodes=(0.0,), stages=((),), weights=(1.0,))

FEHLBERG = Tableau(
    "Runge-Kutta-Fehlberg 4(5)",
    order=4,
    nodes=(0, 1 / 4, 3 / 8, 12 / 13, 1, 1 / 2),
    stages=(
        (),
        (1 / 4,),
        (3 / 32, 9 / 32),
        (1932 / 2197, -7200 / 2197, 7296 / 2197),
        (439 / 216, -8, 3680 / 513, -845 / 4104),
        (-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40),
    ),
    weights=(25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0),
    embedded=(16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55),
)


@dataclass(frozen=True)
class Solution:
    """What a solver did: the accepted points, and how many steps it tried and threw away."""

    times: Array
    values: Array
    rejected: int = 0

    @property
    def steps(self) -> int:
        return len(self.times) - 1

    @property
    def step_sizes(self) -> Array:
        return np.diff(self.times)

    def error(self, exact: Callable[[float], ArrayLike]) -> float:
        """Largest distance from the exact solution over all points."""
        return float(np.max(np.abs(self.values - np.array([exact(time) for time in self.times]))))


def slopes_of(rate: RightHandSide, time: float, value: Array, size: float, method: Tableau) -> list[Array]:
    """The stages of one step of any explicit method."""
    slopes: list[Array] = []
    for node, row in zip(method.nodes, method.stages, strict=True):
        slopes.append(np.asarray(rate(time + node * size, moved(value, size, row, slopes)), dtype=float))
    return slopes


def moved(value: Array, size: float, weights: tuple[float, ...], slopes: list[Array]) -> Array:
    """The value after a step along a weighted sum of slopes."""
    return value + size * sum((w * slope for w, slope in zip(weights, slopes, strict=True)), np.zeros_like(value))


def fixed_steps(
    rate: RightHandSide, start: ArrayLike, end: float, steps: int, method: Tableau = EULER, begin: float = 0.0
) -> Solution:
    """Solve from ``begin`` to ``end`` in ``steps`` equal steps."""
    if steps < 1 or not end > begin:
        raise StabilityError(
            f"cannot go from t = {begin} to t = {end} in {steps} steps; use a later end, one step or more"
        )
    times, size = np.linspace(begin, end, steps + 1), (end - begin) / steps
    values = [np.asarray(start, dtype=float)]
    for time in times[:-1]:
        slopes = slopes_of(rate, float(time), values[-1], size, method)
        values.append(moved(values[-1], size, method.weights, slopes))
    return Solution(times, np.array(values))


def adaptive_steps(
    rate: RightHandSide,
    start: ArrayLike,
    end: float,
    *,
    tolerance: float = 1e-3,
    first_step: float = 0.1,
    factor: float = 0.9,
    method: Tableau = FEHLBERG,
    begin: float = 0.0,
    change: tuple[float, float] = (0.2, 5.0),
) -> Solution:
    """Solve with the step rule of Eq. 6: a step whose error estimate exceeds ``tolerance`` is tried again, smaller.

    ``change`` limits how much one step may differ from the step before, as every practical solver does: an error
    estimate near zero would otherwise ask for an endless step.
    """
    higher = method.higher().weights
    if not (tolerance > 0 and first_step > 0 and end > begin):
        raise StabilityError(
            f"adaptive steps need tolerance > 0, first step > 0 and end > begin, "
            f"not {tolerance}, {first_step} and {begin} to {end}"
        )
    times, values, rejected, size = [begin], [np.asarray(start, dtype=float)], 0, first_step
    while times[-1] < end:
        left = end - times[-1]
        size = min(size, left)
        if times[-1] + size == times[-1] or not math.isfinite(size):
            raise StabilityError(
                f"step size {size:.1e} at t = {times[-1]:.6g} is too small; raise the tolerance ({tolerance})"
            )
        slopes = slopes_of(rate, times[-1], values[-1], size, method)
        carried, estimate = moved(values[-1], size, method.weights, slopes), moved(values[-1], size, higher, slopes)
        difference = float(np.max(local_error(carried, estimate), initial=0.0))
        if difference <= tolerance:
            times.append(end if size == left else times[-1] + size)
            values.append(carried)
        else:  # also where it is NaN: the step overflowed
            rejected += 1
        size = _next_size(size, difference, tolerance, factor, method.order, change)
    return Solution(np.array(times), np.array(values), rejected)


def _next_size(
    size: float, difference: float, tolerance: float, factor: float, order: int, change: tuple[float, float]
) -> float:
    """Eq. 6 inside its limits."""
    smallest, largest = change
    if not math.isfinite(difference):
        return smallest * size
    if difference == 0:
        return largest * size
    wanted = rkf_step_size(size, difference, tolerance, factor, order)
    return min(max(float(wanted), smallest * size), largest * size)


def figure_1(large: float = 0.6, small: float = 0.02, end: float = 3.0, tolerance: float = 1e-3) -> dict[str, Solution]:
    """The three solutions of the paper's Figure 1: y' = -4 y, y(0) = 1.

    Forward Euler multiplies y by 1 - 4h in each step, so it is unstable for h > 1/2 (Eq. 4).
    """
    return {
        f"Euler, h = {large:g}": fixed_steps(decay, 1.0, end, round(end / large)),
        f"Euler, h = {small:g}": fixed_steps(decay, 1.0, end, round(end / small)),
        f"RKF, Tol = {tolerance:g}": adaptive_steps(decay, 1.0, end, tolerance=tolerance),
    }


def decay(time: float, value: Array) -> Array:
    """The right-hand side of Figure 1."""
    return -4 * value


def decayed(time: float) -> float:
    """The exact solution of Figure 1."""
    return math.exp(-4 * time)
