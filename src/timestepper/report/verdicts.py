"""A verdict on every statement of the paper that the records can decide.

Each check comes down to one number per seed (a paired difference, a slope, a distance) and to what its 95% interval
must do: lie below zero, above zero, or inside a margin. If it does not, no part of it may (the runs speak against the
statement) or some part (they leave it open).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from timestepper.report import quantities
from timestepper.report.claims import Claim, Claims, Statement
from timestepper.report.groups import Group, Task, condition_labels, how, schedule_label
from timestepper.report.names import data_name, depth_of, model_name
from timestepper.report.records import Record
from timestepper.report.statistics import Interval, interval, paired, signed, slope

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not yet run"

Measure = Callable[[Record], float | None]


class Finding(NamedTuple):
    """The outcome of a check; ``against``: no part of the interval lies where the statement puts it."""

    state: str
    detail: str
    against: bool = False


@dataclass(frozen=True)
class Verdict:
    """What the runs say to one statement in one place (task and schedule)."""

    claim: Claim
    statement: Statement
    state: str
    detail: str
    where: str = ""
    short: bool = False
    stand_in: bool = False
    against: bool = False


def judge(claims: Claims, groups: Sequence[Group], solutions: dict[str, Any] | None = None) -> list[Verdict]:
    """Verdicts in the order of the claims; a statement has one per task that was run, or a single ``not yet run``."""
    found = []
    for claim in claims.values():
        for statement in claim.statement:
            if statement.quantity == "solution":
                found.append(_judge_solution(claim, statement, solutions))
            else:
                found += _judge_runs(claim, statement, claims, groups)
    return found


def headline(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict per statement: the paper's own task and schedule count before a short schedule before a stand-in.

    Where equally good evidence disagrees, the statement is not reproduced.
    """

    def rank(verdict: Verdict) -> tuple[bool, bool, bool, bool]:
        return verdict.state == NOT_RUN, verdict.stand_in, verdict.short, verdict.state != NOT_REPRODUCED

    chosen: dict[str, Verdict] = {}
    for verdict in sorted(verdicts, key=rank):
        chosen.setdefault(verdict.statement.id, verdict)
    return list(chosen.values())


# -- statements about runs -------------------------------------------------------------------------------------------


def _judge_runs(claim: Claim, statement: Statement, claims: Claims, groups: Sequence[Group]) -> list[Verdict]:
    verdicts = []
    own, other = (False, statement.on, statement.over), (True, statement.stand_in, statement.stand_over)
    for stand_in, places, over in (own, other):
        for place in places:
            local = replace(statement, over=over)
            here = [group for group in groups if _matches(group.task, place)]
            for task, chosen in _by_conditions(here, across_models=statement.check == "trend"):
                result = _examine(local, chosen)
                if result is None:
                    continue
                as_paper = schedule_label(task, claims)[1]
                label = how(task, claims, condition_labels(group.task for group in here)[task])
                network = "" if statement.check == "trend" else f"{model_name(task.model)}, "
                where = f"{network}{data_name(task.data)}, {label}"
                state, detail, against = result
                verdicts.append(Verdict(claim, statement, state, detail, where, not as_paper, stand_in, against))
    return verdicts or [Verdict(claim, statement, NOT_RUN, "", _places(statement))]


def _places(statement: Statement) -> str:
    names = [
        ", ".join(name for name in (model_name(place.get("model", "")), data_name(place["data"])) if name)
        for place in statement.on
    ]
    return "; ".join(names)


def _matches(task: Task, place: dict[str, str]) -> bool:
    return task.data == place["data"] and place.get("model", task.model) == task.model


def _by_conditions(groups: Sequence[Group], across_models: bool) -> list[tuple[Task, list[Group]]]:
    """Groups that may be compared, each bundle with a task that names its conditions."""
    bundles: dict[Task, list[Group]] = {}
    for group in groups:
        key = replace(group.task, model="") if across_models else group.task
        bundles.setdefault(key, []).append(group)
    return [(bundle[0].task, bundle) for bundle in bundles.values()]


def _examine(statement: Statement, groups: list[Group]) -> Finding | None:
    """None where nothing of the kind was run."""
    if statement.check == "trend":
        return _trend(statement, groups)
    if statement.check in ("near", "increasing"):
        return _steps(statement, groups)
    low, high = (_subject(groups, wanted) for wanted in (statement.low, statement.high))
    if low is None or high is None:
        return None
    levels: Sequence[float | None] = statement.noise or (None,)
    samples = [
        (level, paired(low.values(measure), high.values(measure)))
        for level in levels
        for measure in (_measure(statement.quantity, level),)
    ]
    if not all(sample for _, sample in samples):
        return None
    intervals = [(level, interval(sample.values())) for level, sample in samples]
    if statement.check == "similar":
        return _similar(intervals[0][1], statement.margin or 0.0)
    return _lower(statement, intervals)


def _subject(groups: list[Group], wanted: dict[str, str] | None) -> Group | None:
    name = (wanted or {}).get("controller")
    return next((group for group in groups if group.subject == name), None)


def _measure(quantity: str, level: float | None = None) -> Measure:
    if quantity in ("noise_error", "noise_loss"):
        return lambda record: quantities.at_noise(record, quantity.removeprefix("noise_"), level or 0.0)
    return {
        "test_error": quantities.test_error,
        "mean_test_error": quantities.mean_test_error,
        "noise_loss_rise": quantities.noise_loss_rise,
        "last_stage_mean": quantities.last_stage_mean,
    }[quantity]


def _lower(statement: Statement, intervals: list[tuple[float | None, Interval]]) -> Finding:
    fewest = min((found for _, found in intervals), key=lambda found: found.count)
    if not fewest.known:  # a level that one seed alone was measured at decides nothing, and so neither do the others
        return _too_few(fewest)
    unit = "" if "loss" in statement.quantity else " points"
    spans = [(found.low or 0.0, found.high or 0.0) for _, found in intervals]
    holds = [high < 0 for _, high in spans]
    against = any(low > 0 for low, _ in spans)
    # The level to name: the one that speaks against the statement the most, or that says the least for it.
    weakest = max(range(len(spans)), key=lambda index: spans[index][0 if against else 1])
    level, worst = intervals[weakest]
    detail = f"difference {signed(worst.mean)}{unit} {worst.bounds()}, {worst.count} seeds"
    if statement.quantity == "mean_test_error":
        detail = f"error averaged over all epochs: {detail}"
    if level is not None:
        detail = f"holds at {sum(holds)} of {len(holds)} noise levels; weakest at {level:g}: {detail}"
    if statement.gain is not None:
        detail += f"; the paper has {signed(-statement.gain)}"
    return _weigh(all(holds), against, detail)


def _weigh(holds: bool, against: bool, detail: str) -> Finding:
    if holds:
        return Finding(REPRODUCED, detail)
    return Finding(NOT_REPRODUCED, f"{detail}; this {'speaks against it' if against else 'leaves it open'}", against)


def _similar(found: Interval, margin: float) -> Finding:
    """Alike is more than "no difference seen": the whole interval must be small."""
    if found.low is None or found.high is None:
        return _too_few(found)
    detail = f"difference {signed(found.mean)} points {found.bounds()}, {found.count} seeds; allowed ±{margin:g}"
    holds = -margin <= found.low and found.high <= margin
    return _weigh(holds, found.low > margin or found.high < -margin, detail)


def _steps(statement: Statement, groups: list[Group]) -> Finding | None:
    group = _subject(groups, statement.group)
    if group is None:
        return None
    if statement.check == "increasing":
        sample = group.values(quantities.last_stage_rise)
    else:
        value = statement.value or 0.0
        sample = group.values(lambda record: quantities.first_steps_apart(record, value))
    if not sample:
        return None
    found = interval(sample.values())
    if found.low is None or found.high is None:
        return _too_few(found)
    if statement.check == "increasing":
        detail = f"first to last block of the last stage {signed(found.mean, 3)} {found.bounds(3)}, {found.count} seeds"
        return _weigh(found.low > 0, found.high < 0, detail)
    detail = f"largest distance from {statement.value:g}: {found.mean:.3f} {found.bounds(3)}, {found.count} seeds"
    margin = statement.margin or 0.0
    return _weigh(found.high <= margin, found.low > margin, f"{detail}; allowed {margin:g}")


def _trend(statement: Statement, groups: list[Group]) -> Finding | None:
    """Slope over the logarithm of the depth, seed by seed."""
    samples: dict[str, dict[int, float]] = {}
    measure = _measure(statement.quantity)
    for model in statement.over:
        here = [group for group in groups if group.task.model == model]
        if statement.group is not None:
            chosen = _subject(here, statement.group)
            samples[model] = chosen.values(measure) if chosen else {}
        else:
            low, high = _subject(here, statement.low), _subject(here, statement.high)
            samples[model] = paired(low.values(measure), high.values(measure)) if low and high else {}
    several = {model: sample for model, sample in samples.items() if len(sample) > 1}
    # A depth that one seed alone has got to must not undo what several say of the others.
    used = several if len(several) > 1 else {model: sample for model, sample in samples.items() if sample}
    if len(used) < 2:
        return None
    depths = {model: depth_of(model) or 0 for model in used}
    seeds = set.intersection(*map(set, used.values()))
    slopes = [slope([(math.log2(depths[m]), sample[seed]) for m, sample in used.items()]) for seed in sorted(seeds)]
    if not slopes:
        return None
    found = interval(slopes)
    if found.low is None or found.high is None:
        return _too_few(found)
    unit = "" if "stage" in statement.quantity else " points"
    listed = ", ".join(map(str, depths.values()))
    detail = f"{signed(found.mean)}{unit} per doubling of depth {found.bounds()}, {found.count} seeds; depth {listed}"
    if len(depths) < len(statement.over):
        detail += f" ({len(depths)} of {len(statement.over)} depths)"
    deepest = max(statement.over, key=lambda model: depth_of(model) or 0)
    if deepest not in used:  # what shallow networks do is not what the paper says of it
        return Finding(NOT_RUN, f"so far {detail}")
    falls, rises = found.high < 0, found.low > 0
    return _weigh(falls, rises, detail) if statement.direction == "falling" else _weigh(rises, falls, detail)


def _too_few(found: Interval) -> Finding:
    return Finding(NOT_RUN, f"one seed gives {signed(found.mean, 3)} and no interval; two or more are needed")


# -- statements about Figure 1 ---------------------------------------------------------------------------------------


def _judge_solution(claim: Claim, statement: Statement, solutions: dict[str, Any] | None) -> Verdict:
    """``solutions`` maps large, small and rkf to {"values", "steps", "error"}."""
    first, second = ((wanted or {}).get("solution", "") for wanted in (statement.low, statement.high))
    if not solutions or first not in solutions or (second and second not in solutions):
        return Verdict(claim, statement, NOT_RUN, "")
    found = solutions[first]
    values = found["values"]
    shrinks = abs(values[-1]) < abs(values[0]) and max(map(abs, values)) <= abs(values[0])
    if statement.check == "fewer_steps":
        other = solutions[second]
        holds = found["steps"] < other["steps"] / 2
        detail = f"{found['steps']} steps against {other['steps']}"
    else:
        holds = shrinks == (statement.check == "stable")
        detail = f"|y| ends at {abs(values[-1]):.2g} after {found['steps']} steps; largest error {found['error']:.2g}"
    state = REPRODUCED if holds else NOT_REPRODUCED
    return Verdict(claim, statement, state, detail, "computed for this page", against=not holds)
