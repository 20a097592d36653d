"""Means, spreads and intervals over seeds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import linear_regression

CONFIDENCE = 0.95
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Interval:
    """A mean over seeds; the standard deviation and the 95% t-interval of the mean need two seeds or more."""

    count: int
    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def known(self) -> bool:
        return self.low is not None

    def spread(self, digits: int = 2) -> str:
        """``6.92 ± 0.24``: mean, with a real minus sign, and standard deviation."""
        mean = signed(self.mean, digits).removeprefix("+")
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{digits}f}"

    def bounds(self, digits: int = 2) -> str:
        """``[-2.41, -1.09]``, with a real minus sign."""
        if self.low is None or self.high is None:
            return "no interval from one seed"
        return f"[{signed(self.low, digits)}, {signed(self.high, digits)}]"


def interval(values: Iterable[float]) -> Interval:
    """Mean, standard deviation (n - 1) and 95% t-interval."""
    numbers = [float(value) for value in values]
    count = len(numbers)
    mean = math.fsum(numbers) / count
    if count < 2:
        return Interval(count, mean)
    from scipy.stats import t

    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (count - 1))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * deviation / math.sqrt(count)
    return Interval(count, mean, deviation, mean - half, mean + half)


def paired(low: Mapping[int, float], high: Mapping[int, float]) -> dict[int, float]:
    """Differences low - high of the seeds that both have."""
    return {seed: low[seed] - high[seed] for seed in sorted(low.keys() & high.keys())}


def slope(points: Iterable[tuple[float, float]]) -> float:
    """Least-squares slope of y over x."""
    return linear_regression(*zip(*points, strict=True)).slope


def signed(value: float, digits: int = 2) -> str:
    """With a real minus sign, and a plus sign for what is above zero."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{MINUS}{text}" if value < 0 else f"+{text}"
