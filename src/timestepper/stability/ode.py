"""The paper's Figure 1: y' = -4 y, y(0) = 1, with large, small and adaptive steps."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from timestepper.equations import residual_step

Array = NDArray[np.float64]


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
    def error(self) -> float:
        """Largest distance from the exact solution over all points."""
        return float(np.max(np.abs(self.values - np.array([exact(time) for time in self.times]))))


def figure_1(large: float = 0.6, small: float = 0.02, end: float = 3.0, tolerance: float = 1e-3) -> dict[str, Solution]:
    """The three solutions of the figure. Needs scipy, which ``timestepper[report]`` brings."""
    return {
        f"Euler, h = {large:g}": euler(large, end),
        f"Euler, h = {small:g}": euler(small, end),
        f"RKF, Tol = {tolerance:g}": fehlberg(tolerance, end),
    }


def rate(value):
    """The right-hand side."""
    return -4 * value


def exact(time: float) -> float:
    return math.exp(-4 * time)


def euler(size: float, end: float) -> Solution:
    """Forward Euler multiplies y by 1 - 4h in each step, so it is unstable for h > 1/2 (Eq. 4)."""
    steps = round(end / size)
    values = [1.0]
    for _ in range(steps):
        values.append(residual_step(values[-1], rate, end / steps))
    return Solution(np.linspace(0, end, steps + 1), np.array(values))


def fehlberg(tolerance: float, end: float, first_step: float = 0.1) -> Solution:
    """Runge-Kutta-Fehlberg: order 4 is carried on, order 5 estimates its error (Eq. 5), the steps follow Eq. 6.

    The numbers are Fehlberg's, all else is scipy's. Its rule is Eq. 6 with the factor 0.9; a step is at most ten times
    as long as the one before it, and no longer than one that had to be tried again. It needs a relative tolerance too,
    which is as good as none here.
    """
    from scipy.integrate import RK45, solve_ivp

    class Fehlberg(RK45):
        C = np.array([0, 1 / 4, 3 / 8, 12 / 13, 1, 1 / 2])
        A = np.array(
            [
                [0, 0, 0, 0, 0],
                [1 / 4, 0, 0, 0, 0],
                [3 / 32, 9 / 32, 0, 0, 0],
                [1932 / 2197, -7200 / 2197, 7296 / 2197, 0, 0],
                [439 / 216, -8, 3680 / 513, -845 / 4104, 0],
                [-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40],
            ]
        )
        B = np.array([25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0])
        E = np.array([16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55, 0]) - np.append(B, 0)

    found = solve_ivp(
        lambda time, y: rate(y), (0, end), [1.0], method=Fehlberg, atol=tolerance, rtol=1e-13, first_step=first_step
    )
    tried = (found.nfev - 1) // 6  # one slope to begin with, six in each step
    return Solution(found.t, found.y[0], tried - (len(found.t) - 1))
