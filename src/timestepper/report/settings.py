"""Where a statement was looked at: the settings (network, data, schedule) in which both of its sides were run."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from timestepper.report.claims import Claims, Place, Statement
from timestepper.report.groups import Arm, Task, condition_labels, how, schedule_label, unlike_the_paper
from timestepper.report.names import data_name, is_papers, is_resnet, model_name
from timestepper.report.parts import ACROSS_MODELS, Demand, ask


def settings_of(statement: Statement, places: Sequence[Place], arms: Sequence[Arm], claims: Claims) -> Iterator[Demand]:
    """Where a statement was looked at; only runs under the same conditions are compared."""
    across = statement.check in ACROSS_MODELS or bool(statement.low and statement.low.model)
    for place in places:
        fresh = (arm.within(place.first_seed, place.last_seed) for arm in arms if _is_at(arm.task, place, statement))
        here = [arm for arm in fresh if arm.runs or arm.diverged]
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
                papers = is_papers(task.model)  # of others no setting is nearer to the paper than another
                unlike = rough + (len(unlike_the_paper(task, claims)) if papers else 0)
                # Kinds of network are the same at every schedule: a mean of correlations would count them twice.
                conditions = (task,) if statement.check == "ranks" else (task.data, *task.conditions)
                yield asked._replace(where=where, short=short, unlike=unlike, rough=rough, conditions=conditions)


def _lost(statement: Statement, arms: Sequence[Arm]) -> int:
    """How many runs diverged of those that a statement compares, where it was tried with both sides."""
    about = [
        [arm for arm in arms if arm.subject == side.subject and (side.model or arm.task.model) == arm.task.model]
        for side in statement.sides
    ]
    over = [arm for arm in itertools.chain(*about) if not statement.over or arm.task.model in statement.over]
    return sum(len(arm.diverged) for arm in over) if all(about) else 0


def _is_at(task: Task, place: Place, statement: Statement) -> bool:
    named = {place.model} if place.model else {*statement.over, *(side.model for side in statement.sides)} - {""}
    fits = task.model in named if named else is_resnet(task.model)
    options = sorted((task.options or "").split()) == sorted(place.options.split())  # in any order
    trained = place.lr in (None, task.lr) and place.warmup in (None, task.warmup)
    return fits and options and place.data == task.data and trained


def in_words(places: Sequence[Place]) -> str:
    def told(place: Place) -> Iterator[str]:
        yield from filter(None, (model_name(place.model), data_name(place.data)))
        if place.lr is not None:
            yield f"learning rate {place.lr:g}"
        if place.warmup is not None:
            yield f"warm-up {place.warmup:g} epochs"

    return "; ".join(", ".join(told(place)) for place in places)
