"""Records of one kind together: what was run, under which conditions, and how a reader calls it."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timestepper.names import CONTROLLERS
from timestepper.report.claims import Claims, Schedule
from timestepper.report.names import PAPER_DATA, depth_of
from timestepper.report.records import Record

# Fields that say how a run was computed and watched, not what was learned.
_FREE = {
    "data": {"root", "download", "test_batch_size", "workers", "name"},
    "runtime": {"device", "compile", "cuda_graph", "channels_last", "fast_convolutions"},
    "run": {"seed", "log_steps", "evaluate_epochs", "checkpoint_steps", "checkpoint_epochs", "checkpoint_seconds"}
    | {"tensorboard", "monitor"},
    "model": {"name", "last_norm_init"},
}
_USUAL = {"reduction": (None,), "descriptor": ("mean",), "descriptor_gradient": (True,), "weight_decay": (None,)}
_USUAL["start"] = ("paper",)
_OFF = (None, False, "none", "")


@dataclass(frozen=True)
class Task:
    """What is the same for the runs that may be compared with each other: data, model and every other condition."""

    data: str
    model: str
    epochs: int
    batch_size: int
    conditions: str  # canonical JSON of all that is left

    @property
    def depth(self) -> int | None:
        return depth_of(self.model)


@dataclass(frozen=True)
class Group:
    """The finished runs of one subject on one task, one per seed."""

    task: Task
    subject: str
    runs: dict[int, Record]

    @property
    def plain(self) -> bool:
        return self.subject == "plain"

    def values(self, of: Callable[[Record], float | None]) -> dict[int, float]:
        """A figure by seed, for the runs that have it."""
        found = {seed: of(record) for seed, record in self.runs.items()}
        return {seed: value for seed, value in found.items() if value is not None}


def group(records: Iterable[Record]) -> list[Group]:
    """Groups in a stable order: by data, model, longest training; plain first, then the paper's controller."""
    found: dict[tuple[Task, str], dict[int, Record]] = defaultdict(dict)
    for record in records:
        found[task_of(record), subject_of(record.recipe)].setdefault(record.seed, record)
    groups = [Group(task, subject, dict(sorted(runs.items()))) for (task, subject), runs in found.items()]
    return sorted(groups, key=_order)


def repeated(records: Iterable[Record]) -> list[str]:
    """A message for each record of a run that another record is of too; only the first of them counts."""
    first: dict[tuple[Task, str, int], Record] = {}
    messages = []
    for record in records:
        earlier = first.setdefault((task_of(record), subject_of(record.recipe), record.seed), record)
        if earlier is not record:
            messages.append(f"{record.path}: the same run as {earlier.path}; left out, remove one of them")
    return messages


def _order(group: Group) -> tuple:
    task, subjects = group.task, ("plain", *CONTROLLERS)
    rank = subjects.index(group.subject) if group.subject in subjects else len(subjects)
    return (
        task.data,
        task.model.rstrip("0123456789"),
        task.depth or 0,
        -task.epochs,
        task.batch_size,
        task.conditions,
        rank,
        group.subject,
    )


def task_of(record: Record) -> Task:
    """The conditions of a run."""
    return task_from(record.recipe, record.data_sha256)


def task_from(recipe: Mapping[str, Mapping[str, Any]], data_sha256: str = "") -> Task:
    """The conditions that a recipe asks for."""
    rest = {
        section: {name: value for name, value in table.items() if name not in _FREE.get(section, ())}
        for section, table in recipe.items()
        if section != "controller"
    }
    epochs, batch_size = rest["run"].pop("epochs"), rest["data"].pop("batch_size")
    conditions = json.dumps({**rest, "data_sha256": data_sha256}, sort_keys=True)
    return Task(recipe["data"]["name"], recipe["model"]["name"], epochs, batch_size, conditions)


def subject_of(recipe: Mapping[str, Mapping[str, Any]]) -> str:
    """What was put on the network, in the words of claims: ``plain``, ``lstm``, ``fixed(0.01)``, with any option."""
    controller = recipe["controller"]
    kind, value = controller["kind"], controller.get("value")
    name = "plain" if kind == "none" else kind if value is None else f"{kind}({value:g})"
    options = []
    if (start := recipe["model"].get("last_norm_init")) not in (None, 1):  # 1 is what the paper's networks start with
        options.append(f"last norm starts at {start:g}")
    if kind != "none":
        options += [
            f"{key.replace('_', ' ')} {json.dumps(setting) if isinstance(setting, bool) else setting}"
            for key, setting in controller.items()
            if key not in ("kind", "value", "module") and setting not in _USUAL.get(key, _OFF)
        ]
    return ", ".join([name, *options])


def schedule_label(task: Task, claims: Claims) -> tuple[str, bool]:
    """How long a task trains, in words, and whether that is the paper's schedule (or the paper has none)."""
    length = f"{task.epochs} epochs, batch {task.batch_size}"
    for claim in claims.values():
        for schedule in claim.schedule:
            if schedule.data == task.data:
                odd = _deviations(task, schedule)
                if not odd and (schedule.epochs, schedule.batch_size) == (task.epochs, task.batch_size):
                    return f"paper's schedule ({length})", True
                word = "short" if task.epochs < schedule.epochs else "other"
                return f"{word} schedule ({', '.join([length, *odd])})", False
    if claims and task.data in PAPER_DATA:  # the claim file that has its schedule could not be read
        return f"{length}, the paper's schedule is not known", False
    return length, True


def _deviations(task: Task, schedule: Schedule) -> list[str]:
    """Settings that are not the paper's, whatever the length."""
    found = json.loads(task.conditions)
    return [
        _words(key, found[part][key])
        for part, wanted in schedule.settings.items()
        for key, value in wanted.items()
        if key in found.get(part, {}) and found[part][key] != value
    ]


def how(task: Task, claims: Claims, extra: str) -> str:
    """The schedule and what else tells a task from others, nothing twice."""
    schedule = schedule_label(task, claims)[0]
    return ", ".join([schedule, *(part for part in extra.split(", ") if part and part not in schedule)])


def condition_labels(tasks: Iterable[Task]) -> dict[Task, str]:
    """What tells a task from the one that most runs share, where data, model and length agree: ``precision bf16``."""
    alike: dict[tuple, Counter[Task]] = defaultdict(Counter)
    for task in tasks:
        alike[task.data, task.model, task.epochs, task.batch_size][task] += 1
    labels: dict[Task, str] = {}
    for same in alike.values():
        usual = same.most_common(1)[0][0]
        labels |= {task: conditions_apart(task, usual) for task in same}
    return labels


def conditions_apart(task: Task, usual: Task) -> str:
    """The conditions of a task that are not the usual ones: ``precision tf32``."""
    settings, others = (_flat(json.loads(conditions)) for conditions in (task.conditions, usual.conditions))
    return ", ".join(_words(key, value) for key, value in settings.items() if value != others.get(key))


def _words(key: str, value: Any) -> str:
    return f"{key.rpartition('.')[2].replace('_', ' ')} {_short(value)}"


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _short(value: Any) -> str:
    return value[:8] if isinstance(value, str) and len(value) == 64 else json.dumps(value).strip('"')
