"""What the types of a record leave open: the places that tables and figures read must be there and hold numbers."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from timestepper.errors import RecordError

if TYPE_CHECKING:
    from timestepper.report.records import Record

KINDS = ("power", "adversarial", "random")
_TEXTS = (("model", "name"), ("controller", "kind"), ("data", "name"))
_OPTIONAL_NUMBERS = (("model", "last_norm_init"), ("controller", "value"))


def check(record: "Record") -> None:
    """A message that names file and place for the first thing that the page could not show."""
    _finished(record)
    for section, key in _TEXTS:
        _text(record, f"recipe.{section}.{key}", record.recipe.get(section, {}).get(key))
    _number(record, "recipe.data.batch_size", record.recipe["data"].get("batch_size"))
    for section, key in _OPTIONAL_NUMBERS:
        if (value := record.recipe[section].get(key)) is not None:
            _number(record, f"recipe.{section}.{key}", value)
    _figure(record, "final.test.error", record.final, "test", "error")
    if "folded" in record.final:
        _figure(record, "final.folded.error", record.final, "folded", "error")
        _number(record, "final.fold_difference", record.final.get("fold_difference"))
    if (influence := record.final.get("descriptor_influence")) is not None:
        _numbers(record, "final.descriptor_influence", influence)
    for line in record.epochs:
        _epoch(record, line)
    _steps(record)
    if record.noise is not None:
        draws = (*record.noise.error, *record.noise.loss)
        _same(record, "noise", (record.noise.levels, record.noise.error, record.noise.loss), not all(draws))
    if record.stability is not None:
        growth = record.stability
        lacking = not (set(KINDS) <= set(growth.log_growth) and set(KINDS) <= set(growth.log_end_to_end))
        _same(record, "stability", (growth.log_bound, *growth.log_growth.values()), lacking)


def _finished(record: "Record") -> None:
    wanted = record.recipe.get("run", {}).get("epochs")
    done = [line.get("epoch") for line in record.epochs]
    if type(wanted) is not int or wanted < 1 or done != list(range(1, wanted + 1)):
        raise RecordError(f"{record.path}: {len(done)} of {wanted} epochs; a run that did not finish is not reported")


def _epoch(record: "Record", line: dict[str, Any]) -> None:
    where = f"epoch {line['epoch']}"
    _figure(record, f"{where}: train.loss", line, "train", "loss")
    if "test" in line:
        _figure(record, f"{where}: test.error", line, "test", "error")


def _steps(record: "Record") -> None:
    """Step sizes of every stage, and the same stages and depths in every epoch that has them."""
    depths = {f"step_sizes/{name}": len(stage) for name, stage in record.step_sizes.items()}
    rows = [row for stage in record.step_sizes.values() for row in stage]
    _same(record, "step_sizes", (), not all(depths.values()) or not all(rows))
    last = record.epochs[-1].get("profiles", {})
    stages = [name for name in last if name.startswith("step_sizes/")] if isinstance(last, dict) else []
    if stages and set(stages) != set(depths):
        raise _unsound(record, "step_sizes")
    if not stages:  # a run that did not follow them over training
        return
    for line in record.epochs:
        profiles = line.get("profiles")
        found = profiles if isinstance(profiles, dict) else {}
        for name, depth in depths.items():
            values = found.get(name)
            where = f"epoch {line['epoch']}: profiles.{name}"
            if not isinstance(values, list) or len(values) != depth:
                raise _unsound(record, where)
            for value in values:
                _number(record, where, value)


def _figure(record: "Record", where: str, table: dict[str, Any], part: str, name: str) -> None:
    inner = table.get(part)
    _number(record, where, inner.get(name) if isinstance(inner, dict) else None)


def _number(record: "Record", where: str, value: Any) -> None:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise _unsound(record, where)


def _numbers(record: "Record", where: str, table: Any) -> None:
    if not isinstance(table, dict):
        raise _unsound(record, where)
    for name, value in table.items():
        _number(record, f"{where}.{name}", value)


def _text(record: "Record", where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _unsound(record, where)


def _same(record: "Record", where: str, lists: Iterable[Any], wrong: bool) -> None:
    lengths = {len(values) for values in lists}
    if wrong or len(lengths) > 1 or 0 in lengths:
        raise _unsound(record, where)


def _unsound(record: "Record", where: str) -> RecordError:
    return RecordError(f"{record.path}: {where} is missing or not what it must be; restore the file or run it again")
