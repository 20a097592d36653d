"""A verdict on every statement of the paper: supported, contradicted, equal, open, not run, or no effect possible.

``parts`` says what a statement asks for, ``statistics`` when that is decided. Here the settings (network, data,
schedule) come together: each has its verdict, several that answer the same question are averaged, and which verdict is
the statement's main one is fixed before the runs, so that none is picked for its outcome.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from timestepper.report.claims import Claim, Claims, Place, Statement
from timestepper.report.groups import Arm, Task, condition_labels, how, schedule_label, unlike_the_paper
from timestepper.report.names import data_name, model_name
from timestepper.report.parts import ACROSS_MODELS, Demand, ask
from timestepper.report.statistics import (
    CONFIDENCE,
    CONTRADICTED,
    EQUAL,
    EQUAL_MARGIN,
    NOT_RUN,
    OPEN,
    SUPPORTED,
    Part,
    average,
    decide,
    difference,
    holm,
    refuted,
    signed,
)

_ALL, _DISAGREE = "all of these together", "the settings disagree"


@dataclass(frozen=True)
class Verdict:
    """What the runs say to one statement in one setting, or in all of them; ``main`` is the one that counts."""

    claim: Claim
    statement: Statement
    state: str
    detail: str
    where: str = ""
    short: bool = False
    stand_in: bool = False
    main: bool = True


def judge(claims: Claims, arms: Sequence[Arm], solutions: Mapping[str, Any] = MappingProxyType({})) -> list[Verdict]:
    """Verdicts in the order of the claims; each statement has one that is ``main``."""
    found = []
    for claim in claims.values():
        for statement in claim.statement:
            blank = Verdict(claim, statement, NOT_RUN, "", _places(statement.on))
            if statement.check == "settled":
                found.append(replace(blank, state=statement.state, detail=f"{statement.why} ({statement.by})"))
            elif statement.quantity == "solution":
                found.append(_judge_solution(blank, solutions))
            else:
                found += _judge_runs(blank, claims, arms)
    return found


def headline(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict per statement of the paper."""
    return [verdict for verdict in verdicts if verdict.main and not verdict.claim.ours]


# -- statements about runs -------------------------------------------------------------------------------------------


def _judge_runs(blank: Verdict, claims: Claims, arms: Sequence[Arm]) -> list[Verdict]:
    """The paper's own places count before stand-ins; a statement about several places must hold in each."""
    statement = blank.statement
    own = [_pool(blank, list(_settings(statement, [place], arms, claims))) for place in statement.on]
    local = replace(statement, over=statement.stand_over or statement.over)
    stand_in = _pool(replace(blank, stand_in=True), list(_settings(local, statement.stand_in, arms, claims)))
    if len(own) > 1 and any(own):
        last = [each[-1] if each else blank for each in own]
        states = [verdict.state for verdict in last]
        state = states[0] if len(set(states)) == 1 else CONTRADICTED if CONTRADICTED in states else OPEN
        told = (f"{_places([place])}: {found}" for place, found in zip(statement.on, states, strict=True))
        short = any(verdict.short for verdict in last)
        own.append([replace(blank, state=state, detail="; ".join(told), short=short)])
    every = [*(verdict for each in own for verdict in each), *stand_in] or [blank]
    main = (own[-1] if any(own) else stand_in or [blank])[-1]
    return [replace(verdict, main=verdict is main) for verdict in every]


def _settings(statement: Statement, places: Sequence[Place], arms: Sequence[Arm], claims: Claims) -> Iterator[Demand]:
    """Where a statement was looked at; only runs under the same conditions are compared."""
    across = statement.check in ACROSS_MODELS or bool(statement.low and statement.low.model)
    for place in places:
        here = [arm.since(place.first_seed) for arm in arms if _is_at(arm.task, place)]
        if statement.check == "ranks":
            if asked := ask(statement, here):
                yield asked._replace(where=f"{model_name(place.model) or 'all networks'}, {data_name(place.data)}")
            continue
        labels = condition_labels(arm.task for arm in here)
        bundles: dict[Task, list[Arm]] = {}
        for arm in here:
            bundles.setdefault(replace(arm.task, model="") if across else arm.task, []).append(arm)
        for bundle in bundles.values():
            lost = _lost(statement, bundle)
            if (asked := ask(statement, bundle)) or lost:
                asked = (asked or Demand([]))._replace(lost=lost)
                task = bundle[0].task
                network = "" if across else f"{model_name(task.model)}, "
                where = f"{network}{data_name(task.data)}, {how(task, claims, labels[task])}"
                short = not schedule_label(task, claims)[1]
                rough = bool(statement.caution_in_bf16) and ("runtime.precision", '"bf16"') in task.conditions
                unlike = len(unlike_the_paper(task, claims)) + rough
                yield asked._replace(where=where, short=short, unlike=unlike, rough=rough, conditions=task.conditions)


def _lost(statement: Statement, arms: Sequence[Arm]) -> int:
    """How many runs diverged of those that a statement compares, where it was tried with both sides."""
    sides = [side for side in (statement.low, statement.high, statement.group) if side]
    about = [
        [arm for arm in arms if arm.subject == side.subject and (side.model or arm.task.model) == arm.task.model]
        for side in sides
    ]
    over = [arm for arm in itertools.chain(*about) if not statement.over or arm.task.model in statement.over]
    return sum(len(arm.diverged) for arm in over) if all(about) else 0


def _is_at(task: Task, place: Place) -> bool:
    like = place.data == task.data and place.model in ("", task.model)
    return like and place.lr in (None, task.lr) and place.options in (None, task.options)


def _pool(blank: Verdict, settings: Sequence[Demand]) -> list[Verdict]:
    """A verdict for each setting; the last one counts, that of those with seeds enough.

    Averaged are those that differ in network, length and batch and in nothing else. What is trained more like the paper
    counts before what is not, and of other conditions (precision, data) those with the most settings and seeds.
    """
    found = [_verdict(blank, setting) for setting in settings]
    whole = [s for s in settings if s.parts and not s.partial and all(part.enough for part in s.parts)]
    if not whole:
        ranked = sorted(zip(found, settings, strict=True), key=lambda pair: _rank(*pair))
        return [verdict for verdict, _ in ranked]
    nearest = min(setting.unlike for setting in whole)
    same: dict[tuple, list[Demand]] = {}
    for setting in whole:
        if setting.unlike == nearest:
            same.setdefault(setting.conditions, []).append(setting)
    bundles = sorted(same.values(), key=lambda bundle: (len(bundle), sum(map(_seeds, bundle))))
    each = [_together(blank, bundle) for bundle in bundles]
    main = each[-1]
    others = [setting for setting in settings if setting not in whole and setting.lost and setting.unlike <= nearest]
    if {SUPPORTED, CONTRADICTED} <= {verdict.state for verdict in each}:
        main = replace(main, state=OPEN, detail=f"{main.detail}; {_DISAGREE}")
    if others and not blank.statement.of_those_that_end:  # without them the mean would be that of the settings it suits
        told = "; ".join(f"{_diverged(setting.lost)} at {setting.where}" for setting in others)
        main = replace(main, state=OPEN, detail=f"{main.detail}; {told}")
    return [*(verdict for verdict in found if verdict != main), main]


def _rank(verdict: Verdict, setting: Demand) -> tuple:
    return verdict.state != NOT_RUN, not verdict.short, -setting.unlike


def _seeds(setting: Demand) -> int:
    return min(min(part.estimate.counts) for part in setting.parts)


def _diverged(number: int) -> str:
    return f"{number} run{'s' * (number > 1)} diverged"


def _together(blank: Verdict, settings: Sequence[Demand]) -> Verdict:
    """The verdict on the mean of several settings, open where it is not theirs.

    Where they differ for certain, each must say by itself what the mean says. And none may leave room for twice what
    counts as equal: one that is better and one that is worse are not equal.
    """
    verdicts = [_verdict(blank, setting) for setting in settings]
    if len(settings) == 1:
        return verdicts[0]
    columns = list(zip(*(setting.parts for setting in settings), strict=True))
    parts = [column[0]._replace(estimate=average([part.estimate for part in column])) for column in columns]
    notes = {setting.note for setting in settings if setting.note}
    note = "; ".join([*(notes if len(notes) == 1 else ()), f"mean of {len(settings)} settings"])
    short, rough = (any(getattr(setting, key) for setting in settings) for key in ("short", "rough"))
    lost = sum(setting.lost for setting in settings)
    together = _verdict(blank, Demand(parts, note, lost=lost, where=_ALL, short=short, rough=rough))
    states = {verdict.state for verdict in verdicts}
    opposed = {SUPPORTED, CONTRADICTED} <= states | {together.state}
    near = together.state != EQUAL or all(part.within(2 * EQUAL_MARGIN) for column in columns for part in column)
    if together.state == OPEN or states == {together.state} or (near and not opposed and not _differ(columns)):
        return together
    return replace(together, state=OPEN, detail=f"{together.detail}; {_DISAGREE}")


def _differ(columns: Sequence[Sequence[Part]]) -> bool:
    """Whether a part is certainly not the same in two settings, corrected for the number of pairs."""
    pairs = (
        difference(one.estimate, other.estimate)
        for column in columns
        for one, other in itertools.combinations(column, 2)
    )
    chances = holm([2 * min(pair.chance(0), pair.chance(0, above=True)) for pair in pairs])
    return min(chances) <= 1 - CONFIDENCE


def _verdict(blank: Verdict, asked: Demand) -> Verdict:
    statement = blank.statement
    if not asked.parts:
        state = NOT_RUN if statement.of_those_that_end else OPEN
        detail = f"{_diverged(asked.lost)}, too few are left"
        return replace(blank, state=state, detail=detail, where=asked.where, short=asked.short)
    detail = _detail(asked, statement)
    state = decide(asked.parts, points=statement.check == "lower" and "error" in statement.quantity)
    if asked.partial:
        state, detail = NOT_RUN, f"so far {detail}"
    elif asked.rough:
        state, detail = OPEN, f"{detail}; {statement.caution_in_bf16}"
    elif asked.lost and not statement.of_those_that_end:
        state = OPEN  # a mean without the runs that failed is too kind
    return replace(blank, state=state, detail=detail, where=asked.where, short=asked.short)


def _detail(asked: Demand, statement: Statement) -> str:
    """The parts in words; of many, the one that speaks against the statement the most or says the least for it."""
    lead = [part for part in asked.parts if not part.at]
    many = [part for part in asked.parts if part.at and not part.veto]
    if statement.check == "similar":
        lead = lead[:1]
    told = [_part(part, statement) for part in lead]
    against = [part.at for part, no in zip(asked.parts, refuted(asked.parts), strict=True) if no and part.at]
    if many:
        told.append(f"holds for certain at {sum(part.holds for part in many)} of {len(many)}")
    told += [f"certainly not at {', '.join(against)}"] if against else []
    if many:
        weakest = max(many, key=lambda part: part.estimate.chance(part.bound, part.above))
        told.append(f"weakest at {weakest.at}: {_part(weakest, statement)}")
    text = f"{'; '.join(told)}, {asked.parts[0].estimate.seeds()}"
    if statement.check == "ranks":
        text = "; ".join(told)
    if asked.lost:
        text += f"; {_diverged(asked.lost)}"
    if asked.note:
        text += f"; {asked.note}"
    return text + (f"; the paper has {signed(-statement.gain)}" if statement.gain is not None else "")


def _part(part: Part, statement: Statement) -> str:
    if statement.check == "ranks":
        low, high = part.estimate.interval()
        numbers = [signed(math.tanh(value)) for value in (part.estimate.mean, low, high)]
        return f"{part.what} {numbers[0]} [{numbers[1]}, {numbers[2]}]"
    digits = 3 if "step" in statement.quantity or "stage" in statement.quantity else 2
    unit = " points" if "error" in statement.quantity else ""
    value, bounds = f"{signed(part.estimate.mean, digits)}{unit}", part.estimate.bounds(digits)
    first = part.what.startswith(("per ", "from "))
    return f"{value} {part.what} {bounds}" if first else f"{part.what} {value} {bounds}"


def _places(places: Sequence[Place]) -> str:
    rates = ("" if place.lr is None else f"learning rate {place.lr:g}" for place in places)
    named = ((model_name(place.model), data_name(place.data), rate) for place, rate in zip(places, rates, strict=True))
    return "; ".join(", ".join(filter(None, names)) for names in named)


# -- statements about Figure 1 ---------------------------------------------------------------------------------------


def _judge_solution(blank: Verdict, solutions: Mapping[str, Any]) -> Verdict:
    """``solutions`` maps large, small and rkf to a label and a solution."""
    sides = [side.solution for side in (blank.statement.low, blank.statement.high) if side]
    if not sides or not set(sides) <= set(solutions):
        return blank
    (_, found), (_, other) = solutions[sides[0]], solutions[sides[-1]]
    first, last = abs(found.values[0]), abs(found.values[-1])
    if blank.statement.check == "fewer_steps":
        holds = found.steps < other.steps / 2
        detail = f"{found.steps} steps against {other.steps}"
    else:
        shrinks = last < first and max(map(abs, found.values)) <= first
        holds = shrinks == (blank.statement.check == "stable")
        detail = f"|y| ends at {last:.2g} after {found.steps} steps; largest error {found.error:.2g}"
    state = SUPPORTED if holds else CONTRADICTED
    return replace(blank, state=state, detail=detail, where="computed for this page")
