"""The beginning of the page: the main numbers in words."""

from collections.abc import Callable, Sequence
from typing import Any

from timestepper.report import counts, quantities, verdicts
from timestepper.report.claims import Claims
from timestepper.report.compare import by_task, differences, plain_of, same_start_of
from timestepper.report.groups import Group, Task, schedule_label
from timestepper.report.names import PAPER_DATA, subject_name
from timestepper.report.statistics import mean_of, signed


def summarise(
    groups: Sequence[Group],
    claims: Claims,
    found: Sequence[verdicts.Verdict],
    counted: dict[str, Any] | None,
    label: Callable[[Task], str],
) -> list[str]:
    """A few short paragraphs."""
    runs = sum(len(group.runs) for group in groups)
    lines = [f"{runs} finished {'run' if runs == 1 else 'runs'}."] if runs else ["No finished runs yet."]
    lines += [_compare(bundle, label) for bundle in _main_tasks(groups, claims)]
    if found:
        lines.append(_count_verdicts(verdicts.headline(found)))
    if counted:
        equal, total = counts.agreement(claims, counted)
        lines.append(f"{equal} of the paper's {total} parameter and GFLOPs figures come out to the printed digit.")
    return lines


def _count_verdicts(chosen: Sequence[verdicts.Verdict]) -> str:
    states = [verdict.state for verdict in chosen]
    counted = ", ".join(f"{states.count(state)} {state}" for state in verdicts.STATES if state in states)
    text = f"Of {len(states)} statements of the paper: {counted}"
    decided = [verdict for verdict in chosen if verdict.state != verdicts.NOT_RUN]
    lesser = sum(verdict.short or verdict.stand_in for verdict in decided)
    if lesser:
        text += f"; {lesser} of the {len(decided)} that were looked at rest on a short schedule or a smaller stand-in"
    return f"{text}."


def _main_tasks(groups: Sequence[Group], claims: Claims) -> list[list[Group]]:
    """Of the tasks with a plain network to compare with, one of the paper's schedule and the one with most runs."""
    bundles = [bundle for bundle in by_task(groups).values() if plain_of(bundle) and len(bundle) > 1]
    bundles.sort(key=lambda bundle: -sum(len(group.runs) for group in bundle))
    tasks = ((bundle, bundle[0].task) for bundle in bundles)
    own = [bundle for bundle, task in tasks if task.data in PAPER_DATA and schedule_label(task, claims)[1]]
    return own[:1] + [bundle for bundle in bundles[:1] if bundle not in own[:1]]


def _compare(bundle: list[Group], label: Callable[[Task], str]) -> str:
    plain = plain_of(bundle)
    assert plain is not None
    other, apart = next(iter(differences(bundle)), (None, None))
    error = mean_of(plain.values(quantities.test_error).values())
    if other is None or apart is None:
        return f"{label(plain.task)}: the plain network has {error.spread()}% test error."
    theirs = mean_of(other.values(quantities.test_error).values())
    span = f", 95% interval {apart.bounds()}" if apart.known else f" ({apart.bounds()})"
    name = subject_name(other.subject)
    text = (
        f"{label(plain.task)}: test error {error.spread()}% (plain) and {theirs.spread()}% "
        f"({name}), a difference of {signed(apart.mean)} points{span}."
    )
    fair = same_start_of(bundle)
    if fair is None or other is fair:
        return text
    errors = mean_of(fair.values(quantities.test_error).values())
    beaten = next((found for group, found in differences(bundle, fair) if group is other), None)
    text += f" A plain network whose blocks start at half their size, as the controller's do, has {errors.spread()}%"
    return f"{text}; {name} minus that: {signed(beaten.mean)} points, {beaten.bounds()}." if beaten else f"{text}."
