"""A verdict on every statement of the paper: supported, contradicted, equal, open, not run, or no effect possible.

``parts`` says what a statement asks for, ``statistics`` when that is decided. Here the settings (network, data,
schedule) come together: each has its verdict, several that answer the same question are averaged, and which verdict is
the statement's main one is fixed before the runs, so that none is picked for its outcome.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from timestepper.report import wording
from timestepper.report.claims import Claim, Claims, Statement
from timestepper.report.groups import Arm
from timestepper.report.parts import Demand
from timestepper.report.settings import in_words, settings_of
from timestepper.report.statistics import (
    CONFIDENCE,
    CONTRADICTED,
    EQUAL,
    EQUAL_CONFIDENCE,
    NOT_RUN,
    OPEN,
    SUPPORTED,
    Part,
    average,
    decide,
    difference,
    holm,
    p_of,
    together,
)

_ALL, _DISAGREE, _DIFFER = "all of these together", "the settings disagree", "the settings differ in size"
_NOT_EACH = "on average only, not in each setting"


@dataclass(frozen=True)
class Verdict:
    """What the runs say to one statement in one setting, or in all of them; ``main`` is the one that counts.

    ``p`` is that of a state that chance can bring about. ``alone`` is a state that is certain by itself and not among
    all statements.
    """

    claim: Claim
    statement: Statement
    state: str
    detail: str
    where: str = ""
    short: bool = False
    stand_in: bool = False
    main: bool = True
    p: float | None = None
    alone: bool = False


def judge(claims: Claims, arms: Sequence[Arm], solutions: Mapping[str, Any] = MappingProxyType({})) -> list[Verdict]:
    """Verdicts in the order of the claims; each statement has one that is ``main``."""
    found = []
    for claim in claims.values():
        for statement in claim.statement:
            blank = Verdict(claim, statement, NOT_RUN, "", in_words(statement.on))
            if statement.check == "settled":
                found.append(replace(blank, state=statement.state, detail=f"{statement.why} ({statement.by})"))
            elif statement.quantity == "solution":
                found.append(_judge_solution(blank, solutions))
            else:
                found += _judge_runs(blank, claims, arms)
    return _among_all(found)


def _among_all(found: Sequence[Verdict]) -> list[Verdict]:
    """With a note in each main verdict that is certain by itself only; of forty, two would be so by chance."""
    noted = list(found)
    tested = [n for n, each in enumerate(found) if each.main and _looked_at(each)]
    ps = [1.0 if found[n].state in (OPEN, NOT_RUN) else found[n].p or 0.0 for n in tested]
    for n, p in zip(tested, together(ps), strict=True):
        if found[n].state not in (OPEN, NOT_RUN) and p > 1 - CONFIDENCE:
            told = f"certain by itself, not among all {len(tested)} statements (p {p:.2f})"
            noted[n] = replace(found[n], detail=f"{found[n].detail}; {told}", alone=True)
    return noted


def _looked_at(verdict: Verdict) -> bool:
    """Whether runs were looked at; some depths could have contradicted what needs more of them to be supported."""
    return verdict.p is not None or verdict.state == OPEN or (verdict.state == NOT_RUN and bool(verdict.detail))


def headline(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """One verdict per statement of the paper."""
    return [verdict for verdict in verdicts if verdict.main and not verdict.claim.ours]


# -- statements about runs -------------------------------------------------------------------------------------------


def _judge_runs(blank: Verdict, claims: Claims, arms: Sequence[Arm]) -> list[Verdict]:
    """The paper's own places count before stand-ins; a statement about several places must hold in each."""
    statement = blank.statement
    own = [_pool(blank, list(settings_of(statement, [place], arms, claims))) for place in statement.on]
    local = replace(statement, over=statement.stand_over or statement.over)
    stand_in = _pool(replace(blank, stand_in=True), list(settings_of(local, statement.stand_in, arms, claims)))
    if len(own) > 1 and any(own):
        last = [each[-1] if each else blank for each in own]
        states = [verdict.state for verdict in last]
        state = states[0] if len(set(states)) == 1 else CONTRADICTED if CONTRADICTED in states else OPEN
        told = (f"{in_words([place])}: {found}" for place, found in zip(statement.on, states, strict=True))
        short = any(verdict.short for verdict in last)
        ps = [verdict.p for verdict in last if verdict.state == state and verdict.p is not None]
        p = min(1.0, min(ps) * len(last)) if state == CONTRADICTED else max(ps, default=None)
        own.append([replace(blank, state=state, detail="; ".join(told), short=short, p=p)])
    every = [*(verdict for each in own for verdict in each), *stand_in] or [blank]
    main = (own[-1] if any(own) else stand_in or [blank])[-1]
    return [replace(verdict, main=verdict is main) for verdict in every]


def _pool(blank: Verdict, settings: Sequence[Demand]) -> list[Verdict]:
    """A verdict for each setting; the last one counts, that of those with seeds enough.

    Averaged are those that differ in network, length and batch and in nothing else. What is trained more like the paper
    counts before what is not, and of other conditions (precision, data) those with the most settings and seeds.
    """
    found = [_verdict(blank, setting) for setting in settings]
    used = _comparable(settings)
    if not used:
        ranked = sorted(zip(found, settings, strict=True), key=lambda pair: _rank(*pair))
        return [verdict for verdict, _ in ranked]
    nearest = min(settings[number].unlike for number in used)
    same: dict[tuple, list[int]] = {}
    for number in used:
        if settings[number].unlike == nearest:
            same.setdefault(settings[number].conditions, []).append(number)
    numbers = sorted(same.values(), key=lambda bundle: (len(bundle), sum(_seeds(settings[n]) for n in bundle)))
    bundles = [[settings[number] for number in bundle] for bundle in numbers]
    each = [_together(blank, bundle) for bundle in bundles]
    single = [found[number].state for bundle in numbers for number in bundle]
    beside = [n for n, setting in enumerate(settings) if n not in numbers[-1] and setting.unlike <= nearest]
    against = [found[n] for n in beside if n not in used and found[n].state == CONTRADICTED]  # by some of its parts
    main = _agreed(each[-1], [*each, *against], [_mean(bundle).deciding for bundle in bundles], single)
    if main.state == NOT_RUN and {OPEN, CONTRADICTED} & {found[n].state for n in beside}:
        main = replace(main, state=OPEN)  # what lies beside it was looked at
    if lost := [settings[number] for number in beside if settings[number].lost]:  # a mean of those that it suits
        words = "; ".join(f"{wording.diverged(setting.lost)} at {setting.where}" for setting in lost)
        main = replace(main, state=OPEN, detail=f"{main.detail}; {words}")
    return [*(verdict for verdict in found if verdict != main), main]


def _comparable(settings: Sequence[Demand]) -> list[int]:
    """The numbers of those with seeds enough: of the ones that are whole, and where there are none, of all."""
    enough = [number for number, setting in enumerate(settings) if setting.enough]
    return [number for number in enough if not settings[number].partial] or enough


def _rank(verdict: Verdict, setting: Demand) -> tuple:
    return verdict.state != NOT_RUN, not verdict.short, -setting.unlike


def _seeds(setting: Demand) -> int:
    return min(min(part.estimate.counts) for part in setting.parts)


def _together(blank: Verdict, settings: Sequence[Demand]) -> Verdict:
    """The verdict on the mean of several settings, open where it is not theirs."""
    verdicts = [_verdict(blank, setting) for setting in settings]
    return _agreed(_verdict(blank, _mean(settings)), verdicts, [setting.deciding for setting in settings])


def _mean(settings: Sequence[Demand]) -> Demand:
    """What several settings say on average; of one, what it says."""
    if len(settings) == 1:
        return settings[0]
    columns = _columns([setting.parts for setting in settings])
    parts = [column[0]._replace(estimate=average([part.estimate for part in column])) for column in columns]
    notes = {setting.note for setting in settings if setting.note}
    note = "; ".join([*(notes if len(notes) == 1 else ()), f"mean of {len(settings)} settings"])
    short, rough = (any(getattr(setting, key) for setting in settings) for key in ("short", "rough"))
    lost, partial = sum(setting.lost for setting in settings), any(setting.partial for setting in settings)
    return Demand(parts, note, partial=partial, lost=lost, where=_ALL, short=short, rough=rough)


def _columns(settings: Sequence[Sequence[Part]]) -> list[list[Part]]:
    """The same part of several settings, of those that have it; what is said of all depths, where all say it."""
    found: dict[tuple[str, str], list[Part]] = {}
    for parts in settings:
        for number, part in enumerate(parts):
            found.setdefault((part.at, "" if part.at else str(number)), []).append(part)
    return [column for (at, _), column in found.items() if at or len(column) == len(settings)]


def _agreed(
    main: Verdict, verdicts: Sequence[Verdict], parts: Sequence[Sequence[Part]], single: Sequence[str] = ()
) -> Verdict:
    """The main verdict where those of several settings, which have these parts, bear it out; else it is open.

    Where they differ for certain, each must say by itself what the main one says. That something lies within a margin
    each must say in any case: one that is better and one that is worse are not equal. ``single`` are the states of
    settings whose mean is among the verdicts.
    """
    states = {verdict.state for verdict in verdicts}
    alike = main.state == (SUPPORTED if main.statement.check in ("similar", "near") else EQUAL)
    opposed = {SUPPORTED, CONTRADICTED} <= states | {main.state, *single}
    if states == {main.state} or (main.state == OPEN and not opposed):
        return main
    why = _DISAGREE if opposed else _DIFFER if _differ(parts) else _NOT_EACH if alike else ""
    detail = main.detail.removeprefix(f"{_DIFFER}; ").removeprefix(f"{_DISAGREE}; ")  # of some of them
    return replace(main, state=OPEN, detail=f"{why}; {detail}") if why else main


def _differ(settings: Sequence[Sequence[Part]]) -> bool:
    """Whether a part is certainly not the same in two settings, corrected for the number of pairs."""
    pairs = (
        difference(one.estimate, other.estimate)
        for column in _columns(settings)
        for one, other in itertools.combinations(column, 2)
    )
    chances = holm([2 * min(pair.chance(0), pair.chance(0, above=True)) for pair in pairs])
    return min(chances, default=1.0) <= 1 - CONFIDENCE


def _verdict(blank: Verdict, asked: Demand) -> Verdict:
    statement = blank.statement
    if not asked.parts:
        detail = f"{wording.diverged(asked.lost)}, too few are left"
        return replace(blank, state=OPEN, detail=detail, where=asked.where, short=asked.short)
    state = decide(asked.deciding)
    if asked.partial and state != CONTRADICTED:
        state = NOT_RUN
    if asked.lost or (asked.rough and state != NOT_RUN):
        state = OPEN  # a mean without the runs that failed is too kind
    detail = wording.detail(asked, statement, EQUAL_CONFIDENCE if state == EQUAL else CONFIDENCE)
    if asked.partial:
        detail = f"so far {detail}"
    if asked.rough:
        detail += f"; {statement.caution_in_bf16}"
    return replace(
        blank, state=state, p=p_of(state, asked.deciding), detail=detail, where=asked.where, short=asked.short
    )


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
