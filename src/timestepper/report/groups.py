"""Runs that belong together: what was run, under which conditions, how a reader calls it, and what it differs from."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from timestepper.recipe.load import sections
from timestepper.recipe.schema import Recipe
from timestepper.records.diverged import Diverged
from timestepper.records.record import Record, Result
from timestepper.records.subject import HALF_START, PLAIN, Subject
from timestepper.report import quantities
from timestepper.report.claims import Claims, PaperSchedule
from timestepper.report.names import PAPER_DATA, data_name, depth_of, model_name
from timestepper.report.statistics import Estimate, difference, mean_of

# Settings that a task or a subject tells, or that only watch.
_TOLD = ("controller", "run", "data.name", "data.batch_size", "model.name", "model.last_norm_init", "model.start")
Measure = Callable[[Record], float | None]
Label = Callable[["Task"], str]


@dataclass(frozen=True)
class Task:
    """What is the same for the runs that may be compared with each other: data, model and every other condition."""

    data: str
    model: str
    epochs: int
    batch_size: int
    conditions: tuple[tuple[str, str], ...] = ()  # all that is left, in order: ("optimiser.lr", "0.1")

    @property
    def depth(self) -> int:
        return depth_of(self.model)

    @property
    def lr(self) -> float | None:
        return self._condition("optimiser.lr")

    @property
    def warmup(self) -> float | None:
        return self._condition("schedule.warmup_epochs")

    @property
    def options(self) -> str | None:
        return self._condition("model.options")

    def _condition(self, key: str) -> Any:
        return json.loads(dict(self.conditions).get(key, "null"))


@dataclass(frozen=True)
class Arm:
    """The finished runs of one subject on one task, one per seed; ``diverged`` are the seeds of which a run failed."""

    task: Task
    subject: Subject
    runs: dict[int, Record]
    diverged: tuple[int, ...] = ()

    def mean(self, of: Measure) -> Estimate | None:
        """The mean of a figure over the runs that have it."""
        found = [value for value in map(of, self.runs.values()) if value is not None]
        return mean_of(found) if found else None

    @property
    def error(self) -> Estimate:
        return mean_of(map(quantities.test_error, self.runs.values()))

    def within(self, first: int, last: int | None = None) -> "Arm":
        """Without the seeds before the first and after the last."""
        end = math.inf if last is None else last
        runs = {seed: run for seed, run in self.runs.items() if first <= seed <= end}
        return replace(self, runs=runs, diverged=tuple(seed for seed in self.diverged if first <= seed <= end))


def group(records: Iterable[Record], diverged: Iterable[Diverged] = ()) -> list[Arm]:
    """Arms in a stable order: by data, model, longest training; plain first, then the paper's controller.

    An arm of which all runs diverged has none to show, and counts where verdicts are made.
    """
    found: dict[tuple[Task, Subject], dict[int, Record]] = defaultdict(dict)
    lost: dict[tuple[Task, Subject], set[int]] = defaultdict(set)
    for record in _distinct(records)[0]:
        found[task_of(record), record.subject][record.seed] = record
    for run in diverged:
        lost[task_of(run), run.subject].add(run.seed)

    def order(arm: Arm) -> tuple:
        task = arm.task
        network = (task.data, task.model.rstrip("0123456789"), task.depth)
        return (*network, -task.epochs, task.batch_size, task.conditions, arm.subject.order)

    keys = dict.fromkeys([*found, *lost])
    arms = (Arm(*key, dict(sorted(found[key].items())), tuple(sorted(lost[key]))) for key in keys)
    return sorted(arms, key=order)


def repeated(records: Iterable[Record]) -> list[str]:
    """A message for each record that does not count because another one is of the same run."""
    return _distinct(records)[1]


def _distinct(records: Iterable[Record]) -> tuple[list[Record], list[str]]:
    """The records that count, and a message for each of the others.

    Records of an arm with one seed, or with one training curve under several seeds, are one run: a file was copied, or
    trained twice. Where all of them say the same, the lowest seed counts. Where they do not, none does: a choice by
    the name of a file could be anybody's, and no record has a date. Nor does a curve that two conditions have.
    """
    found = list(records)
    seeds, curves = defaultdict(list), defaultdict(list)
    for record in found:
        seeds[_arm(record)].append(record)
        curves[_curve(record)].append(record)
    counting, told = [], []
    for record in found:
        same = list({other.path: other for other in (*seeds[_arm(record)], *curves[_curve(record)])}.values())
        first = min(same, key=lambda other: (other.seed, other.path))
        if any(_outcome(other) != _outcome(record) for other in same):
            others = ", ".join(other.path for other in same if other is not record)
            told.append(f"{record.path}: the same run as {others} with another result; none counts, keep one of them")
        elif record is first:
            counting.append(record)
        else:
            told.append(f"{record.path}: the same run as {first.path}; left out, remove one of them")
    return counting, told


def _arm(record: Record) -> tuple:
    return task_of(record), record.subject, record.seed


def _curve(record: Record) -> tuple:
    """A training curve, whatever batch size, learning rate or other condition it is said to be of."""
    task = task_of(record)
    return task.data, task.model, task.epochs, record.subject, *record.loss


def _outcome(record: Record) -> tuple:
    return task_of(record), record.subject, record.loss, record.final, record.noise, record.stability


def task_of(record: Result) -> Task:
    """The conditions of a run."""
    return task_from(record.recipe, record.data_sha256, record.world)


def task_from(recipe: Mapping[str, Mapping[str, Any]], data_sha256: str = "", world: int = 1) -> Task:
    """The conditions that a recipe asks for; a setting that it does not have, being older, is at its default."""
    conditions = {"data_sha256": data_sha256, "processes": str(world)}
    for section, settings in sections(Recipe()):
        for field, default in settings:
            key = f"{section}.{field.name}"
            if not field.metadata["free"] and not {section, key} & set(_TOLD):
                conditions[key] = json.dumps(recipe.get(section, {}).get(field.name, default))
    data, model, epochs = recipe["data"], recipe["model"]["name"], recipe["run"]["epochs"]
    return Task(data["name"], model, epochs, data["batch_size"], tuple(sorted(conditions.items())))


# -- in words ----------------------------------------------------------------------------------------------------------


def schedule_label(task: Task, claims: Claims) -> tuple[str, bool]:
    """How long a task trains, in words, and whether that is the paper's schedule (or the paper has none)."""
    length = f"{task.epochs} epochs, batch {task.batch_size}"
    paper = _paper_schedule(task, claims)
    if paper is None:
        if claims and task.data in PAPER_DATA:  # the claim file that has its schedule could not be read
            return f"{length}, the paper's schedule is not known", False
        return length, True
    odd = [_words(*condition) for condition in unlike_the_paper(task, claims)]
    if not odd and (paper.epochs, paper.batch_size) == (task.epochs, task.batch_size):
        return f"paper's schedule ({length})", True
    word = "short" if task.epochs < paper.epochs else "other"
    return f"{word} schedule ({', '.join([length, *odd])})", False


def unlike_the_paper(task: Task, claims: Claims) -> list[tuple[str, str]]:
    """The conditions in which a task is not trained as the paper trains on its data; none where the paper does not.

    A batch may be shared by processes, or go through the network in parts: each norm sees one of these.
    """
    paper = _paper_schedule(task, claims)
    theirs = {} if paper is None else paper.settings()
    odd = [(key, value) for key, value in task.conditions if theirs.get(key, value) != value]
    conditions = dict(task.conditions)
    parts = math.prod(json.loads(conditions.get(key, "1")) for key in ("processes", "data.accumulate"))
    return odd if paper is None or paper.parts in (None, parts) else [*odd, ("parts of a batch", str(parts))]


def _paper_schedule(task: Task, claims: Claims) -> PaperSchedule | None:
    schedules = (schedule for claim in claims.values() for schedule in claim.schedule)
    return next((schedule for schedule in schedules if schedule.data == task.data), None)


def how(task: Task, claims: Claims, extra: str) -> str:
    """The schedule and what else tells a task from others, nothing twice."""
    schedule = schedule_label(task, claims)[0]
    return ", ".join([schedule, *(part for part in extra.split(", ") if part and part not in schedule)])


def label_of(arms: Iterable[Arm], claims: Claims) -> Label:
    """What a reader needs to know of a task: network, data, schedule, and what else tells it from others."""
    extras = condition_labels(arm.task for arm in arms)
    return lambda task: f"{model_name(task.model)}, {data_name(task.data)}, {how(task, claims, extras.get(task, ''))}"


def condition_labels(tasks: Iterable[Task]) -> dict[Task, str]:
    """What tells a task from the one that most runs share, where data, model and length agree: ``precision bf16``."""
    alike: dict[tuple, Counter[Task]] = defaultdict(Counter)
    for task in tasks:
        alike[task.data, task.model, task.epochs, task.batch_size][task] += 1
    usual = {task: same.most_common(1)[0][0] for same in alike.values() for task in same}
    return {task: conditions_apart(task, other) for task, other in usual.items()}


def conditions_apart(task: Task, usual: Task) -> str:
    """The conditions of a task that are not the usual ones: ``precision tf32``."""
    return ", ".join(_words(*condition) for condition in task.conditions if condition not in usual.conditions)


def _words(key: str, value: str) -> str:
    short = value[:8] if key == "data_sha256" else value.strip('"')
    name = "optimiser" if key == "optimiser.kind" else key.rpartition(".")[2].replace("_", " ")
    return f"{name} {short}"


# -- side by side ------------------------------------------------------------------------------------------------------


def by_task(arms: Iterable[Arm]) -> dict[Task, list[Arm]]:
    """Arms that may be compared, plain first."""
    bundles: dict[Task, list[Arm]] = {}
    for arm in arms:
        bundles.setdefault(arm.task, []).append(arm)
    return bundles


def arm_of(arms: Sequence[Arm], subject: Subject = PLAIN) -> Arm | None:
    return next((arm for arm in arms if arm.subject == subject), None)


def same_start_of(arms: Sequence[Arm]) -> Arm | None:
    """The plain network whose blocks start at half their size, as a controller's do: what a controller must beat."""
    return arm_of(arms, HALF_START)


def differences(arms: Sequence[Arm], base: Arm | None = None) -> list[tuple[Arm, Estimate]]:
    """Each arm's test error minus that of the base, which is the plain network where none is named."""
    base = base or arm_of(arms)
    return [] if base is None else [(arm, difference(arm.error, base.error)) for arm in arms if arm is not base]
