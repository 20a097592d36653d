"""The beginning of the page: the main numbers in words."""

from collections.abc import Sequence
from typing import Any

from timestepper.report import counts
from timestepper.report.claims import Claims
from timestepper.report.groups import Arm, Label, arm_of, by_task, differences, same_start_of, schedule_label
from timestepper.report.names import PAPER_DATA
from timestepper.report.statistics import NOT_RUN, STATES, difference, signed
from timestepper.report.verdicts import Verdict, headline


def summarise(
    arms: Sequence[Arm], claims: Claims, found: Sequence[Verdict], counted: dict[str, Any] | None, label: Label
) -> list[str]:
    """A few short paragraphs."""
    runs = sum(len(arm.runs) for arm in arms)
    lines = [f"{runs} finished {'run' if runs == 1 else 'runs'}."] if runs else ["No finished runs yet."]
    lines += [_compare(bundle, label) for bundle in _main_tasks(arms, claims)]
    if chosen := headline(found):
        decided = [verdict for verdict in chosen if verdict.state != NOT_RUN]
        lesser = sum(verdict.short or verdict.stand_in for verdict in decided)
        rest = f"; {lesser} of the {len(decided)} that were looked at rest on a short schedule or a smaller stand-in"
        lines.append(f"Of the paper's {count_states(chosen)}{rest if lesser else ''}.")
    if counted:
        equal, total = counts.agreement(claims, counted)
        lines.append(f"{equal} of the paper's {total} parameter and GFLOPs figures come out to the printed digit.")
    return lines


def count_states(found: Sequence[Verdict]) -> str:
    """``5 statements: 2 supported, 3 open``."""
    states = [verdict.state for verdict in found]
    told = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    alone = sum(verdict.alone for verdict in found)
    return f"{len(states)} statements: {told}" + (f"; certain by themselves only: {alone}" if alone else "")


def _main_tasks(arms: Sequence[Arm], claims: Claims) -> list[list[Arm]]:
    """Two tasks with a plain network to compare with: one of the paper's schedule, and the one with most runs."""
    bundles = [bundle for bundle in by_task(arms).values() if arm_of(bundle) and len(bundle) > 1]
    bundles.sort(key=lambda bundle: -sum(len(arm.runs) for arm in bundle))
    tasks = ((bundle, bundle[0].task) for bundle in bundles)
    own = [bundle for bundle, task in tasks if task.data in PAPER_DATA and schedule_label(task, claims)[1]]
    return own[:1] + [bundle for bundle in bundles[:1] if bundle not in own[:1]]


def _compare(bundle: Sequence[Arm], label: Label) -> str:
    """The plain network and the first other one; and what is left where both start alike."""
    (other, apart), *_ = differences(bundle)
    plain, fair = arm_of(bundle), same_start_of(bundle)
    assert plain is not None
    name = other.subject.label
    span = f", 95% interval {apart.bounds()}" if apart.known else f" ({apart.bounds()})"
    text = (
        f"{label(plain.task)}: test error {plain.error.spread()}% (plain) and {other.error.spread()}% "
        f"({name}), a difference of {signed(apart.mean)} points{span}."
    )
    if fair is None or other is fair:
        return text
    beaten = difference(other.error, fair.error)
    return (
        f"{text} A plain network whose blocks start at half their size, as the controller's do, has "
        f"{fair.error.spread()}%; {name} minus that: {signed(beaten.mean)} points, {beaten.bounds()}."
    )
