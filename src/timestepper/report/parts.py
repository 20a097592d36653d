"""What each statement asks of the runs of one setting: estimates that must lie on one side of a bound."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import NamedTuple

from timestepper.report import quantities
from timestepper.report.claims import Side, Statement
from timestepper.report.groups import Arm, Measure
from timestepper.report.names import depth_of
from timestepper.report.statistics import EQUAL_MARGIN, FEWEST, Estimate, Part, difference, rank_correlation, slope

ACROSS_MODELS = ("trend", "keeps", "most")


class Asked(NamedTuple):
    """The parts of a statement; ``note`` says what they rest on, ``partial`` that the deepest network is not there."""

    parts: list[Part]
    note: str = ""
    partial: bool = False


def ask(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """None where nothing of the kind was run."""
    return _ASKING[statement.check](statement, arms)


def _mean(arms: Sequence[Arm], side: Side | None, measure: Measure, model: str = "") -> Estimate | None:
    """Of the runs of a side, on a network where one is named."""
    if side is None:
        return None
    model = side.model or model
    fit = (arm for arm in arms if arm.subject == side.subject and model in ("", arm.task.model))
    arm = next(fit, None)
    return arm.mean(measure) if arm else None


def _apart(statement: Statement, arms: Sequence[Arm], measure: Measure, model: str = "") -> Estimate | None:
    """``low`` minus ``high``, or the group itself where a statement has but one."""
    if statement.group is not None:
        return _mean(arms, statement.group, measure, model)
    low, high = (_mean(arms, side, measure, model) for side in (statement.low, statement.high))
    return difference(low, high) if low and high else None


def _measures(statement: Statement) -> Iterator[tuple[str, Measure]]:
    """What to measure, and where: at every noise level, in every tenth of the training."""
    if statement.quantity in ("noise_error", "noise_loss"):
        what = statement.quantity.removeprefix("noise_")
        for level in statement.noise:
            yield f"noise {level:g}", partial(quantities.at_noise, what=what, level=level)
    elif statement.quantity == "training_error":
        for tenth in range(1, 11):
            yield f"tenth {tenth} of the training", partial(quantities.training_error, tenth=tenth)
    else:
        yield "", getattr(quantities, statement.quantity)


def _lower(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    found = [(at, _apart(statement, arms, measure)) for at, measure in _measures(statement)]
    parts = [Part(estimate, "difference", at=at) for at, estimate in found if estimate]
    return Asked(parts) if len(parts) == len(found) else None


def _similar(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """Alike is more than "no difference seen": it must not be large to either side."""
    estimate = _apart(statement, arms, quantities.test_error)
    if estimate is None:
        return None
    parts = [Part(estimate, "difference", side * EQUAL_MARGIN, above=side < 0) for side in (1, -1)]
    return Asked(parts, f"allowed ±{EQUAL_MARGIN:g}")


def _near(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    value, margin = statement.value or 0.0, statement.margin or 0.0
    far: dict[str, Measure] = {
        "first_steps": partial(quantities.first_steps_apart, value=value),
        "all_first_steps": partial(quantities.first_steps_apart, value=value, last=True),
        "last_stage": partial(quantities.last_stage_apart, value=value),
    }
    estimate = _mean(arms, statement.group, far[statement.quantity])
    part = estimate and Part(estimate, f"largest distance from {value:g}:", margin)
    return Asked([part], f"allowed {margin:g}") if part else None


def _increasing(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """All blocks of the last stage count: they rise on the whole, and none stays far behind an earlier one."""
    measures, margin = (quantities.last_stage_rise, quantities.last_stage_least), statement.margin or 0.0
    rise, least = (_mean(arms, statement.group, measure) for measure in measures)
    if rise is None or least is None:
        return None
    parts = [
        Part(rise, "from block to block of the last stage", above=True),
        Part(least, "least step from earlier blocks to a later one", -margin, above=True),
    ]
    return Asked(parts, f"a fall of {margin:g} is allowed")


def _trend(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """The slope over the logarithm of the depth.

    A gap that widens must be one: at the deepest network too. What *keeps* rising or falling must not turn back
    between any two depths by more than what counts as equal.
    """
    ((_, measure),) = _measures(statement)
    pairs = ((model, _apart(statement, arms, measure, model)) for model in statement.over)
    all_depths = {depth_of(model): estimate for model, estimate in pairs if estimate}
    # A depth that few seeds have got to must not undo what several say of the others.
    several = {depth: each for depth, each in all_depths.items() if min(each.counts) >= FEWEST}
    used = dict(sorted((several if len(several) > 1 else all_depths).items()))
    if len(used) < 2:
        return None
    rises = statement.direction == "rising"
    parts = [Part(slope([(math.log2(d), e) for d, e in used.items()]), "per doubling of depth", above=rises)]
    deepest = max(map(depth_of, statement.over))
    if statement.check == "keeps":
        bound = -EQUAL_MARGIN if rises else EQUAL_MARGIN
        for (shallow, first), (deep, second) in combinations(used.items(), 2):
            step = difference(second, first)
            parts.append(Part(step, "difference", bound, rises, f"depth {deep} minus {shallow}"))
    elif statement.group is None and deepest in used:
        parts.append(Part(used[deepest], f"at depth {deepest}", above=rises))
    note = f"depth {', '.join(map(str, used))}"
    if len(used) < len(statement.over):
        note += f" ({len(used)} of {len(statement.over)} depths)"
    return Asked(parts, note, partial=deepest not in used)


def _most(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """The first network of ``over`` gains more than each of the others."""
    gains = [_apart(statement, arms, quantities.test_error, model) for model in statement.over]
    known = [gain for gain in gains if gain]
    if len(known) < len(gains):
        return None
    others = zip(statement.over[1:], known[1:], strict=True)
    what = "difference of the differences"
    return Asked([Part(difference(known[0], gain), what, at=f"depth {depth_of(model)}") for model, gain in others])


def _ranks(statement: Statement, arms: Sequence[Arm]) -> Asked | None:
    """Whether a larger bound goes with a larger rise of the error under noise; a kind of network counts once."""
    parts = []
    for level in statement.noise:
        rise = partial(quantities.noise_rise, level=level)
        pairs = ((arm.mean(quantities.log_bound), arm.mean(rise)) for arm in arms)
        points = [(bound.mean, risen.mean) for bound, risen in pairs if bound and risen]
        if len(points) < 5:
            return None
        found = rank_correlation(*zip(*points, strict=True))
        parts.append(Part(found, "rank correlation", above=True, at=f"noise {level:g}"))
    return Asked(parts, f"{len(points)} kinds of network")


_ASKING: dict[str, Callable[[Statement, Sequence[Arm]], Asked | None]] = {
    "lower": _lower,
    "similar": _similar,
    "near": _near,
    "increasing": _increasing,
    "trend": _trend,
    "keeps": _trend,
    "most": _most,
    "ranks": _ranks,
}
