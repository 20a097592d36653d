"""What the types of a claim file leave open: a mistyped name would else be a statement that stays "not yet run"."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from timestepper.errors import RecordError
from timestepper.report.names import DATA, SUBJECT, model_name

if TYPE_CHECKING:
    from timestepper.report.claims import Claim, Row, Statement, Steps

COUNTS = ("parameters_train", "parameters_inference", "gflops_train", "gflops_inference")
SOLUTIONS = ("large", "small", "rkf")
_RUN_FIGURES = ("test_error", "mean_test_error", "noise_error", "noise_loss", "noise_loss_rise")
# For every check the quantities that it can look at and the keys that it cannot do without.
_CHECKS = {
    "lower": (_RUN_FIGURES, ("low", "high", "on")),
    "similar": (_RUN_FIGURES, ("low", "high", "on", "margin")),
    "trend": (("test_error", "last_stage_mean"), ("over", "on")),
    "near": (("first_steps",), ("group", "on", "value", "margin")),
    "increasing": (("last_stage",), ("group", "on")),
    "stable": (("solution",), ("low",)),
    "unstable": (("solution",), ("low",)),
    "fewer_steps": (("solution",), ("low", "high")),
}


def check(claim: "Claim", path: str) -> None:
    """A message that names the file, and the statement or the line of the table, for the first mistake."""
    for row in claim.row:
        _one_of(row.paper, ("test_error", *COUNTS), f"{path}: paper of {row.label}: key")
    lines: tuple[Row | Steps, ...] = (*claim.row, *claim.steps)
    for line in lines:
        _place({"data": line.data, "model": line.model}, f"{path}: {line.label}:")
        _subject(line.controller, f"{path}: {line.label}:")
    for formula in claim.formula:
        _subject(formula.controller, f"{path}: {formula.label}:")
    for stage in claim.structure:
        _models([stage.model], f"{path}: {stage.label}:")
    for schedule in claim.schedule:
        _place({"data": schedule.data}, f"{path}: schedule:")
    for statement in claim.statement:
        _statement(statement, f"{path}: statement {statement.id}:")


def _statement(statement: "Statement", where: str) -> None:
    _one_of([statement.check], tuple(_CHECKS), f"{where} check")
    quantities, keys = _CHECKS[statement.check]
    _one_of([statement.quantity], quantities, f"{where} quantity")
    if statement.check == "trend":
        _one_of([statement.direction], ("rising", "falling"), f"{where} direction")
        keys += ("low", "high") if statement.group is None else ()
    if statement.quantity in ("noise_error", "noise_loss"):
        keys += ("noise",)
    for key in keys:
        if getattr(statement, key) in (None, (), {}):
            raise RecordError(f"{where} key {key} is missing")
    for key in ("low", "high", "group"):
        _compared(getattr(statement, key), statement.quantity == "solution", f"{where} {key}")
    for place in (*statement.on, *statement.stand_in):
        _place(place, where)
    _models((*statement.over, *statement.stand_over), where)


def _compared(wanted: dict[str, str] | None, solution: bool, where: str) -> None:
    if wanted is None:
        return
    key = "solution" if solution else "controller"
    if list(wanted) != [key]:
        raise RecordError(f"{where} must be {{ {key} = … }}, not {wanted}")
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
        if model_name(name) == name:
            raise RecordError(f"{where} model {name!r} is not known; write for example timm/resnet50 or cifar/resnet56")


def _subject(name: str, where: str) -> None:
    if not re.fullmatch(SUBJECT, name):
        kinds = "plain, lstm, two_fc, independent, fixed(0.01)"
        raise RecordError(f"{where} controller {name!r} is not known; allowed are {kinds}")


def _one_of(values: Iterable[str], allowed: tuple[str, ...], where: str) -> None:
    for value in values:
        if value not in allowed:
            raise RecordError(f"{where} {value!r} is not known; allowed are {', '.join(allowed)}")
