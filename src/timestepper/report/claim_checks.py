"""What the types of a claim file leave open: a mistyped name would else be a statement that stays "not run"."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from timestepper import names
from timestepper.errors import RecordError
from timestepper.report.claims import Claim, Row, Schedule, Statement, Steps, Structure
from timestepper.report.names import DATA, SUBJECT, model_name, spelled
from timestepper.report.strict import convert

COUNTS = ("parameters_train", "parameters_inference", "gflops_train", "gflops_inference")
FORMULAS = tuple(name for name, kind in names.CONTROLLERS.items() if kind.paper)
SOLUTIONS = ("large", "small", "rkf")
NOISE_LEVELS = tuple(level / 10 for level in range(11))  # that records have
AUGMENTS = ("none", "shift", "crop_flip", "resized_crop")
SETTINGS: dict[str, dict[str, Any]] = {  # of a recipe, by its part, that a schedule may name, with their types
    "optimiser": {"lr": float, "momentum": float, "nesterov": bool, "weight_decay": float},
    "schedule": {
        "law": str,
        "milestones": tuple[float, ...],
        "every": int | None,
        "factor": float,
        "warmup_epochs": float,
    },
}
LIBRARIES = ("timm", "torchvision", "cifar")
_RUN_FIGURES = ("test_error", "training_error", "noise_error", "noise_loss", "noise_loss_rise")
_STATES = ("no effect possible", "supported", "contradicted", "not run")  # that need no run
# For every check the quantities that it can look at and the keys that it cannot do without.
_CHECKS = {
    "lower": (_RUN_FIGURES, ("low", "high", "on")),
    "similar": (("test_error",), ("low", "high", "on")),
    "trend": (("test_error", "last_stage_mean"), ("over", "on")),
    "keeps": (("test_error", "last_stage_mean"), ("over", "on")),
    "most": (("test_error",), ("low", "high", "over", "on")),
    "near": (("first_steps", "all_first_steps", "last_stage"), ("group", "on", "value", "margin")),
    "increasing": (("last_stage",), ("group", "on", "margin")),
    "ranks": (("noise_rise",), ("on", "noise")),
    "stable": (("solution",), ("low",)),
    "unstable": (("solution",), ("low",)),
    "fewer_steps": (("solution",), ("low", "high")),
    "settled": (("",), ("state", "why")),
}


def check(claim: Claim, path: str) -> None:
    """A message that names the file, and the statement or the line of the table, for the first mistake."""
    for row in claim.row:
        _one_of(row.paper, ("test_error", *COUNTS), f"{path}: paper of {row.label}: key")
        for key, value in row.paper.items():
            _within(value, 100.0 if key == "test_error" else 1e5, f"{path}: paper of {row.label}: {key}")
    lines: tuple[Row | Steps, ...] = (*claim.row, *claim.steps)
    for line in lines:
        _place({"data": line.data, "model": line.model}, f"{path}: {line.label}:")
        _subject(line.controller, f"{path}: {line.label}:")
    for formula in claim.formula:
        _one_of([formula.controller], FORMULAS, f"{path}: {formula.label}: controller")
    _blocks(claim.steps, path)
    for number, stage in enumerate(claim.structure, 1):
        _structure(stage, f"{path}: structure {number} ({stage.label}):")
    for schedule in claim.schedule:
        _schedule(schedule, path)
    for statement in claim.statement:
        _statement(statement, f"{path}: statement {statement.id}:")


def _blocks(lines: Sequence[Steps], path: str) -> None:
    """Names of blocks such as C-5_3, the same in every line of the table."""
    for line in lines:
        for block in line.paper:
            if not re.fullmatch(r"C-[2-9]_[1-9]\d*", block):
                raise RecordError(f"{path}: paper of {line.label}: block {block!r} is not known; write it as C-3_1")
            _within(line.paper[block], 1.0, f"{path}: paper of {line.label}: {block}")
        odd = sorted(line.paper.keys() ^ lines[0].paper.keys())
        if odd:
            raise RecordError(f"{path}: paper of {lines[0].label} and {line.label}: only one has {', '.join(odd)}")


def _structure(stage: Structure, where: str) -> None:
    _models([stage.model], where)
    pairs = {"input": stage.input, "gates": stage.gates, "output": stage.output}
    pairs |= {f"convolutions[{number}]": layer for number, layer in enumerate(stage.convolutions, 1)}
    for name, pair in pairs.items():
        if len(pair) != 2:
            raise RecordError(f"{where} {name} must be two numbers, not {list(pair)}")
    _counts(pairs | {"output_size": (stage.output_size,), "blocks": (stage.blocks,)}, where)


def _schedule(schedule: Schedule, path: str) -> None:
    _place({"data": schedule.data}, f"{path}: schedule:")
    where = f"{path}: schedule of {schedule.data}:"
    _one_of([] if schedule.augment is None else [schedule.augment], AUGMENTS, f"{where} augment")
    _counts({"epochs": (schedule.epochs,), "batch_size": (schedule.batch_size,)}, where)
    for part, known in SETTINGS.items():
        _one_of(schedule.settings[part], tuple(known), f"{where} {part}: key")
        for key, value in schedule.settings[part].items():
            made = convert(value, known[key], f"{where} {part}.{key}")
            for number in made if isinstance(made, tuple) else [made]:
                _within(number if isinstance(number, float) else None, 1e6, f"{where} {part}.{key}")


def _statement(statement: Statement, where: str) -> None:
    _one_of([statement.check], tuple(_CHECKS), f"{where} check")
    quantities, keys = _CHECKS[statement.check]
    _one_of([statement.quantity], quantities, f"{where} quantity")
    if statement.check == "settled":
        _one_of([statement.state], _STATES, f"{where} state")
    if statement.check in ("trend", "keeps"):
        _one_of([statement.direction], ("rising", "falling"), f"{where} direction")
        keys += ("low", "high") if statement.group is None else ()
    if statement.quantity in ("noise_error", "noise_loss"):
        keys += ("noise",)
    for key in keys:
        if getattr(statement, key) in (None, (), {}, ""):
            raise RecordError(f"{where} key {key} is missing")
    for key in ("gain", "margin"):
        _within(getattr(statement, key), 100.0, f"{where} {key}")
    for level in statement.noise:
        if not any(math.isclose(level, known) for known in NOISE_LEVELS):
            raise RecordError(f"{where} noise {level:g} is never measured; levels are 0, 0.1 … 1")
    for key in ("low", "high", "group"):
        _compared(getattr(statement, key), statement.quantity == "solution", f"{where} {key}")
    for place in (*statement.on, *statement.stand_in):
        _place(place, where)
    _models((*statement.over, *statement.stand_over), where)


def _compared(wanted: dict[str, str] | None, solution: bool, where: str) -> None:
    if wanted is None:
        return
    key = "solution" if solution else "controller"
    if key not in wanted or not wanted.keys() <= {key, "model"}:
        raise RecordError(f"{where} must be {{ {key} = … }}, not {wanted}")
    _models([wanted["model"]] if "model" in wanted else [], where)
    if solution:
        _one_of(wanted.values(), SOLUTIONS, f"{where} solution")
    else:
        _subject(wanted[key], where)


def _place(place: dict[str, str], where: str) -> None:
    _one_of(place, ("data", "model"), f"{where} key")
    if "data" not in place:
        raise RecordError(f"{where} key data is missing in {place}")
    _one_of([place["data"]], tuple(DATA), f"{where} data")
    _models([place["model"]] if "model" in place else [], where)


def _models(names: Iterable[str], where: str) -> None:
    for name in names:
        library, _, rest = name.partition("/")
        if library not in LIBRARIES or model_name(name) == name:
            raise RecordError(f"{where} model {name!r} is not known; write for example timm/resnet50 or cifar/resnet56")
        depth = re.fullmatch(r"resnet([0-9]{1,5})", rest)
        odd = depth is None or int(depth[1]) < 8 or int(depth[1]) % 6 != 2
        if library == "cifar" and rest.startswith("resnet") and odd:
            raise RecordError(f"{where} model {name!r} is not known; CIFAR ResNets have 6n+2 layers, such as 56")


def _subject(name: str, where: str) -> None:
    if not re.fullmatch(SUBJECT, name):
        kinds = f"plain, {names.known()}"
        more = "last norm starts at 0.5, start identity, reduction 4, descriptor visible, descriptor gradient false, "
        more += "weight decay 0.1"
        raise RecordError(f"{where} controller {name!r} is not known; allowed are {kinds}, and then in order {more}")
    if spelled(name) != name:
        raise RecordError(f"{where} controller {name!r} must be written {spelled(name)!r}")


def _within(value: float | None, most: float, where: str) -> None:
    if value is not None and not 0 <= value <= most:  # which is so for "not a number" too
        raise RecordError(f"{where} must be a number from 0 to {most:g}, not {value:g}")


def _counts(named: dict[str, tuple[int, ...]], where: str) -> None:
    for name, numbers in named.items():
        if min(numbers) < 1:
            raise RecordError(f"{where} {name} must be 1 or more, not {min(numbers)}")


def _one_of(values: Iterable[str], allowed: tuple[str, ...], where: str) -> None:
    for value in values:
        if value not in allowed:
            raise RecordError(f"{where} {value!r} is not known; allowed are {', '.join(allowed)}")
