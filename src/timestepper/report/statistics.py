"""Means over seeds, what can be said of their differences, and when a statement about them is decided.

Arms are compared as independent samples (Welch) and not paired by seed: two networks that begin with the same seed
take other paths after a few updates, so that their ends have little in common, and pairing costs half the degrees of
freedom. These are those of Welch and Satterthwaite, rounded down; for two arms with unequal numbers of seeds those of
the smaller arm. Without these two precautions three seeds give more than 5 % of false verdicts where one arm scatters
more than the other (tests/unit/report/test_report_false_verdicts.py).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95  # of the intervals that are shown, and of a direction
EQUAL_CONFIDENCE = 0.90  # of the interval that must lie inside the margin of what counts as equal
EQUAL_MARGIN = 0.3  # percentage points; fixed after the first three seeds and before all others
FEWEST = 3  # seeds of each arm, as many as the paper has; fewer decide nothing
MINUS = "\N{MINUS SIGN}"

SUPPORTED, CONTRADICTED, EQUAL, OPEN = "supported", "contradicted", "equal", "open"
NO_EFFECT, NOT_RUN = "no effect possible", "not run"  # what is known before any run, and where there is none
STATES = {SUPPORTED: "good", CONTRADICTED: "bad", EQUAL: "", OPEN: "", NO_EFFECT: "bad", NOT_RUN: "quiet"}  # tones


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or a weighted sum of such means, with its standard error and degrees of freedom.

    ``counts`` are the seeds of the samples behind it, ``deviation`` is that of a single sample. One seed has no error.
    """

    mean: float
    counts: tuple[int, ...]
    error: float | None = None
    freedom: float = 0.0
    deviation: float | None = None

    @property
    def known(self) -> bool:
        """Whether there is an interval; seeds that agree to the last digit give none, because no luck is that good."""
        return self.error is not None and self.error > 1e-9 * max(abs(self.mean), 1e-3)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Student's t-interval."""
        from scipy.special import stdtrit

        half = float(stdtrit(self._degrees, (1 + confidence) / 2)) * (self.error or 0.0)
        return self.mean - half, self.mean + half

    def chance(self, bound: float, above: bool = False) -> float:
        """How probable an estimate so far below (or above) the bound is where the truth lies on the bound."""
        from scipy.special import stdtr

        distance = (self.mean - bound) / (self.error or 1.0)
        return float(stdtr(self._degrees, -distance if above else distance))

    @property
    def _degrees(self) -> float:
        return math.floor(self.freedom + 1e-6)

    def spread(self, digits: int = 2) -> str:
        """``6.92 ± 0.24``: mean, with a real minus sign, and standard deviation."""
        mean = signed(self.mean, digits).removeprefix("+")
        return mean if self.deviation is None else f"{mean} ± {self.deviation:.{digits}f}"

    def bounds(self, digits: int = 2, confidence: float = CONFIDENCE) -> str:
        """``[-2.41, -1.09]``, with a real minus sign."""
        if not self.known:
            return "no interval from one seed" if self.error is None else "no interval, the seeds do not differ"
        low, high = self.interval(confidence)
        return f"[{signed(low, digits)}, {signed(high, digits)}]"

    def seeds(self, sides: int = 2) -> str:
        """``3 seeds``; ``9 and 3 seeds`` of two samples, one of each side; ``3 to 9 seeds each`` of others."""
        least, most = min(self.counts), max(self.counts)
        if least == most:
            return f"{least} seed{'s' if least > 1 else ''}"
        if len(self.counts) == sides == 2:
            return f"{self.counts[0]} and {self.counts[1]} seeds"
        return f"{least} to {most} seeds each"


def mean_of(values: Iterable[float]) -> Estimate:
    """The mean of one sample."""
    numbers = [float(value) for value in values]
    count = len(numbers)
    if count < 2:
        return Estimate(numbers[0], (count,))
    deviation = stdev(numbers)
    return Estimate(fmean(numbers), (count,), deviation / math.sqrt(count), count - 1, deviation)


def combine(weights: Sequence[float], estimates: Sequence[Estimate]) -> Estimate:
    """A weighted sum of independent estimates."""
    mean = math.fsum(weight * each.mean for weight, each in zip(weights, estimates, strict=True))
    counts = tuple(count for each in estimates for count in each.counts)
    if any(each.error is None for each in estimates):
        return Estimate(mean, counts)
    squares = [(weight * (each.error or 0.0)) ** 2 for weight, each in zip(weights, estimates, strict=True)]
    total = math.fsum(squares)
    shares = math.fsum(square**2 / each.freedom for square, each in zip(squares, estimates, strict=True))
    return Estimate(mean, counts, math.sqrt(total), total**2 / shares if shares else 1.0)


def difference(low: Estimate, high: Estimate) -> Estimate:
    """``low`` minus ``high``."""
    found = combine((1, -1), (low, high))
    if found.error is None or low.counts == high.counts:
        return found
    return replace(found, freedom=min(low.freedom, high.freedom))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """One answer to the same question from several settings, each with the same weight.

    Not weighted by precision: from three seeds that is itself a matter of luck, and makes intervals too short.
    """
    return combine([1 / len(estimates)] * len(estimates), estimates)


def slope(points: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Least-squares slope of independent estimates over x."""
    places = [place for place, _ in points]
    middle = math.fsum(places) / len(places)
    width = math.fsum((place - middle) ** 2 for place in places)
    return combine([(place - middle) / width for place in places], [each for _, each in points])


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> Estimate:
    """Spearman's, on Fisher's scale (``tanh`` brings it back), with Fieller's standard error."""
    from scipy.stats import spearmanr

    found = float(spearmanr(xs, ys).statistic)
    return Estimate(math.atanh(min(max(found, -0.999), 0.999)), (len(xs),), 1.03 / math.sqrt(len(xs) - 3), 1e6)


def holm(chances: Sequence[float]) -> list[float]:
    """Chances of several comparisons made at once, each made larger so that one false alarm in all stays as rare."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted = [0.0] * len(chances)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(chances) - rank) * chances[index]))
        adjusted[index] = largest
    return adjusted


class Part(NamedTuple):
    """One thing that a statement asks for: that an estimate lies below (or above) a bound; ``at`` says which one.

    A ``veto`` need not be certain: it keeps a statement from being supported where the estimate itself says no.
    ``points`` tells a difference of errors, ``digits`` how many of them are in print.
    """

    estimate: Estimate
    what: str
    bound: float = 0.0
    above: bool = False
    at: str = ""
    veto: bool = False
    points: bool = False
    digits: int = 2

    @property
    def p(self) -> float:
        """How probable this is by chance: two-sided against zero; one-sided against a margin, as for "equal"."""
        return self.estimate.chance(self.bound, self.above) * (1 if self.bound else 2)

    @property
    def holds(self) -> bool:
        """For certain: against zero with the 95% interval, against a margin with the 90% one."""
        if self.veto:
            return self.estimate.mean > self.bound if self.above else self.estimate.mean < self.bound
        return self.clear and self.p <= 1 - CONFIDENCE

    @property
    def enough(self) -> bool:
        """Whether there are the seeds that a verdict needs."""
        return min(self.estimate.counts) >= FEWEST and self.estimate.known

    @property
    def clear(self) -> bool:
        """Whether it can be certain: not where the interval, as it is in print, ends at 0.00.

        That is so near the edge that another test may say the opposite.
        """
        at_zero = not self.bound and any(round(end, self.digits) == 0 for end in self.estimate.interval())
        return self.enough and not at_zero

    @property
    def p_equal(self) -> float:
        """How probable it is by chance that it lies within what counts as equal."""
        return max(self.estimate.chance(EQUAL_MARGIN), self.estimate.chance(-EQUAL_MARGIN, above=True))


def refuted(parts: Sequence[Part]) -> list[bool]:
    """Which parts certainly do not hold, corrected for their number."""
    return [part.clear and p <= 1 - CONFIDENCE for part, p in zip(parts, _against(parts), strict=True)]


def _against(parts: Sequence[Part]) -> list[float]:
    return holm([2 * part.estimate.chance(part.bound, not part.above) for part in parts])


def decide(parts: Sequence[Part]) -> str:
    """The state of a statement that asks for all of its parts.

    *Supported* needs every part for certain: no correction, since a false verdict needs them all. *Contradicted* needs
    one that certainly does not hold, and there the number of parts counts.
    """
    if not all(part.enough for part in parts):
        return OPEN
    if all(part.holds for part in parts):
        return SUPPORTED
    if any(refuted(parts)):
        return CONTRADICTED
    return EQUAL if all(part.points and part.p_equal <= 1 - CONFIDENCE for part in parts) else OPEN


def p_of(state: str, parts: Sequence[Part]) -> float | None:
    """By which the parts have that state, so that several statements can be looked at together; none of *open*."""
    if state == SUPPORTED:
        return max(part.p for part in parts if not part.veto)
    if state == CONTRADICTED:
        return min(_against(parts))
    return max(part.p_equal for part in parts) if state == EQUAL else None


def together(ps: Sequence[float]) -> list[float]:
    """Larger ones, for many statements at once: of those that stay certain, one in twenty is false on average.

    Benjamini and Hochberg's procedure.
    """
    from scipy.stats import false_discovery_control

    return [float(p) for p in false_discovery_control(ps)]


def signed(value: float, digits: int = 2) -> str:
    """With a real minus sign, and a plus sign for what is above zero."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{MINUS}{text}" if value < 0 else f"+{text}"
