"""What each statement asks of the runs of one setting: estimates that must lie on one side of a bound."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import NamedTuple

from timestepper.report import quantities
from timestepper.report.claims import Side, Statement
from timestepper.report.groups import Arm, Measure
from timestepper.report.names import depth_of
from timestepper.report.statistics import EQUAL_MARGIN, FEWEST, Estimate, Part, difference, rank_correlation, slope

ACROSS_MODELS = ("trend", "keeps", "most")
FEWEST_KINDS = 8  # that a rank correlation is judged by; with five, 8 % of verdicts were false in simulations


class Demand(NamedTuple):
    """The parts of a statement; ``note`` says what they rest on, ``partial`` that not all parts or depths are there.

    ``lost`` counts the runs of its sides that diverged; where too few are left, there are no parts.
    ``where``, ``short`` (not the paper's schedule), ``unlike`` (how many conditions are not the paper's), ``rough``
    (in bf16, where that must not decide) and ``conditions`` tell the setting that they were looked at in.
    """

    parts: list[Part]
    note: str = ""
    partial: bool = False
    lost: int = 0
    where: str = ""
    short: bool = True
    unlike: int = 0
    rough: bool = False
    conditions: tuple = ()

    @property
    def deciding(self) -> list[Part]:
        """Without what is said of all depths, a slope, where some are missing."""
        return [part for part in self.parts if part.at or not self.partial]

    @property
    def enough(self) -> bool:
        """Whether every part has the seeds that a verdict needs."""
        return bool(self.parts) and all(part.enough for part in self.parts)


class _NotRunError(Exception):
    """Something that a statement asks for is not there."""


def ask(statement: Statement, arms: Sequence[Arm]) -> Demand | None:
    """None where nothing of the kind was run."""
    try:
        found = _demand(statement, arms)
    except _NotRunError:
        return None
    digits = 3 if "step" in statement.quantity or "stage" in statement.quantity else 2
    return found._replace(parts=[part._replace(digits=digits) for part in found.parts])


def _demand(statement: Statement, arms: Sequence[Arm]) -> Demand:
    value, margin = statement.value or 0.0, statement.margin or 0.0
    match statement.check:
        case "lower":
            return _lower(statement, arms)
        case "similar":  # more than "no difference seen": it must not be large to either side
            apart = _apart(statement, arms, quantities.test_error)
            parts = [Part(apart, "difference", side * EQUAL_MARGIN, above=side < 0) for side in (1, -1)]
            return Demand(parts, f"allowed ±{EQUAL_MARGIN:g}")
        case "near":
            far: dict[str, Measure] = {
                "first_steps": partial(quantities.first_steps_apart, value=value),
                "all_first_steps": partial(quantities.first_steps_apart, value=value, last=True),
                "last_stage": partial(quantities.last_stage_apart, value=value),
            }
            estimate = _mean(arms, statement.group, far[statement.quantity])
            return Demand([Part(estimate, f"largest distance from {value:g}:", margin)], f"allowed {margin:g}")
        case "increasing":  # all blocks of the last stage: they rise on the whole, and none stays far behind another
            measures = (quantities.last_stage_rise, quantities.last_stage_least)
            rise, least = (_mean(arms, statement.group, measure) for measure in measures)
            parts = [Part(rise, "from block to block of the last stage", above=True)]
            parts.append(Part(least, "smallest rise from earlier blocks to a later one", -margin, above=True))
            return Demand(parts, f"a fall of {margin:g} is allowed")
        case "most":  # the first network gains more than each of the others
            gains = {model: _apart(statement, arms, quantities.test_error, model) for model in statement.over}
            first, *others = ((f"depth {depth_of(model)}", gain) for model, gain in gains.items())
            what = "difference of the differences"
            return Demand([Part(difference(first[1], gain), what, at=at) for at, gain in others])
        case "ranks":
            return _ranks(statement, arms)
    return _trend(statement, arms)


def _lower(statement: Statement, arms: Sequence[Arm]) -> Demand:
    """Of several noise levels or parts of the training, those that were measured."""
    parts, missing = [], []
    for at, measure in _measures(statement):
        try:
            apart = _apart(statement, arms, measure)
        except _NotRunError:
            missing.append(at)
        else:
            parts.append(Part(apart, "difference", at=at, points="error" in statement.quantity))
    if not parts:
        raise _NotRunError
    return Demand(parts, f"not measured: {', '.join(missing)}" if missing else "", partial=bool(missing))


def _mean(arms: Sequence[Arm], side: Side | None, measure: Measure, model: str = "") -> Estimate:
    """The mean over the runs of a side, on a network where one is named."""
    wanted, model = (side.subject, side.model or model) if side else (None, model)
    fit = (arm for arm in arms if arm.subject == wanted and model in ("", arm.task.model))
    if (arm := next(fit, None)) and (found := arm.mean(measure)):
        return found
    raise _NotRunError


def _apart(statement: Statement, arms: Sequence[Arm], measure: Measure, model: str = "") -> Estimate:
    """``low`` minus ``high``, or the group itself where a statement has but one."""
    if statement.group is not None:
        return _mean(arms, statement.group, measure, model)
    return difference(*(_mean(arms, side, measure, model) for side in (statement.low, statement.high)))


def _measures(statement: Statement) -> Iterator[tuple[str, Measure]]:
    """What to measure, and where: at every noise level; in every tenth of the training and at its end."""
    if statement.quantity in ("noise_error", "noise_loss"):
        what = statement.quantity.removeprefix("noise_")
        for level in statement.noise:
            yield f"noise {level:g}", partial(quantities.at_noise, what=what, level=level)
    elif statement.quantity == "training_error":
        for tenth in range(1, 11):
            at = f"{10 * (tenth - 1)} to {10 * tenth}% of the training"
            yield at, partial(quantities.training_error, tenth=tenth)
        yield "the end", quantities.test_error
    else:
        yield "", getattr(quantities, statement.quantity)


def _trend(statement: Statement, arms: Sequence[Arm]) -> Demand:
    """The slope over the logarithm of the depth.

    A gap that widens must be there at the deepest network; and as far as can be seen it is nowhere larger by more than
    what counts as equal, and nowhere so much the other way round. What *keeps* rising or falling must, for certain, not
    turn back by so much between any two depths.
    """
    ((_, measure),) = _measures(statement)
    all_depths: dict[int, Estimate] = {}
    for model in statement.over:
        with suppress(_NotRunError):
            all_depths[depth_of(model)] = _apart(statement, arms, measure, model)
    # A depth that few seeds have got to must not undo what several say of the others.
    several = {depth: each for depth, each in all_depths.items() if min(each.counts) >= FEWEST}
    used = dict(sorted((several if len(several) > 1 else all_depths).items()))
    if len(used) < 2:
        raise _NotRunError
    rises, deepest = statement.direction == "rising", max(map(depth_of, statement.over))
    bound = -EQUAL_MARGIN if rises else EQUAL_MARGIN
    parts = [Part(slope([(math.log2(d), e) for d, e in used.items()]), "per doubling of depth", above=rises)]
    if statement.check == "keeps":
        parts += [
            Part(difference(second, first), "difference", bound, rises, f"depth {deep} minus {shallow}")
            for (shallow, first), (deep, second) in combinations(used.items(), 2)
        ]
    elif statement.group is None and deepest in used:
        parts.append(Part(used[deepest], f"at depth {deepest}", above=rises))
        for depth, gap in used.items():
            if depth != deepest:
                parts.append(Part(gap, "difference", bound, rises, f"depth {depth}", veto=True))
                more, at = difference(used[deepest], gap), f"depth {deepest} minus {depth}"
                parts.append(Part(more, "difference of the differences", bound, rises, at, veto=True))
    note = f"depth {', '.join(map(str, used))}"
    if len(used) < len(statement.over):
        note += f" ({len(used)} of {len(statement.over)} depths)"
    if statement.check == "keeps":
        note += f"; a {'fall' if rises else 'rise'} of less than {EQUAL_MARGIN:g} is allowed"
    return Demand(parts, note, partial=len(used) < len(statement.over))


def _ranks(statement: Statement, arms: Sequence[Arm]) -> Demand:
    """Whether a larger bound goes with a larger rise of the error under noise; a kind of network counts once.

    Kinds with too few seeds do not count: their own place is not known.
    """
    parts = []
    for level in statement.noise:
        pairs = (
            (arm.mean(quantities.log_bound), arm.mean(partial(quantities.noise_rise, level=level))) for arm in arms
        )
        both = ((bound, risen) for bound, risen in pairs if bound and risen)
        points = [(b.mean, risen.mean) for b, risen in both if min(*b.counts, *risen.counts) >= FEWEST]
        if len(points) < FEWEST_KINDS:
            raise _NotRunError
        found = rank_correlation(*zip(*points, strict=True))
        parts.append(Part(found, "rank correlation", above=True, at=f"noise {level:g}"))
    return Demand(parts, f"{len(points)} kinds of network")
