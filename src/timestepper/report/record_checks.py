"""What the types of a record leave open: the places that tables and figures read must be there and hold numbers."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from timestepper.errors import RecordError

if TYPE_CHECKING:
    from timestepper.report.records import Record

KIND = "training"  # the only kind of record that there is
KINDS = ("power", "adversarial", "random")
_LARGEST = 3.5e38  # no float32 holds more, and sums and squares of such numbers fit a float
_TEXTS = (("model", "name"), ("controller", "kind"), ("data", "name"))
_OPTIONAL_NUMBERS = (("model", "last_norm_init"), ("controller", "value"))


def check(record: "Record") -> None:
    """A message that names file and place for the first thing that the page could not show."""
    _finished(record)
    _alike(record, "kind", record.kind, KIND)
    _alike(record, "seed", record.seed, record.recipe["run"].get("seed"))
    _number(record, "wall_seconds", record.wall_seconds, 0)
    _settings(record)
    for section, key in _TEXTS:
        _text(record, f"recipe.{section}.{key}", record.recipe.get(section, {}).get(key))
    _number(record, "recipe.data.batch_size", record.recipe["data"].get("batch_size"))
    for section, key in _OPTIONAL_NUMBERS:
        if (value := record.recipe[section].get(key)) is not None:
            _number(record, f"recipe.{section}.{key}", value)
    _error(record, "final.test.error", record.final, "test")
    if "folded" in record.final:
        _error(record, "final.folded.error", record.final, "folded")
        _number(record, "final.fold_difference", record.final.get("fold_difference"))
    if "descriptor_influence" in record.final:
        _numbers(record, "final.descriptor_influence", record.final["descriptor_influence"])
    for line in record.epochs:
        _epoch(record, line)
    _steps(record)
    _noise(record)
    _stability(record)


def _finished(record: "Record") -> None:
    wanted = record.recipe.get("run", {}).get("epochs")
    done = [line.get("epoch") for line in record.epochs]
    if type(wanted) is not int or wanted < 1 or len(done) != wanted or done != list(range(1, wanted + 1)):
        raise RecordError(f"{record.path}: {len(done)} of {wanted} epochs; a run that did not finish is not reported")


def _settings(record: "Record") -> None:
    """Every setting of a recipe is one value or a list of values."""
    for section, settings in record.recipe.items():
        for key, setting in settings.items():
            for value in setting if isinstance(setting, list) else [setting]:
                if isinstance(value, dict | list):
                    raise _unsound(record, f"recipe.{section}.{key}")


def _epoch(record: "Record", line: dict[str, Any]) -> None:
    where = f"epoch {line['epoch']}"
    train = line.get("train")
    _number(record, f"{where}: train.loss", train.get("loss") if isinstance(train, dict) else None)
    if "test" in line:
        _error(record, f"{where}: test.error", line, "test")
    if not isinstance(line.get("profiles", {}), dict):
        raise _unsound(record, f"{where}: profiles")


def _steps(record: "Record") -> None:
    """Step sizes of every stage, and the same stages and depths in every epoch that has them."""
    depths = {f"step_sizes/{name}": len(stage) for name, stage in record.step_sizes.items()}
    rows = [row for stage in record.step_sizes.values() for row in stage]
    _same(record, "step_sizes", (), not all(depths.values()) or not all(rows))
    _every(record, "step_sizes", rows)
    stages = [name for name in record.epochs[-1].get("profiles", {}) if name.startswith("step_sizes/")]
    if stages and set(stages) != set(depths):
        raise _unsound(record, "step_sizes")
    if not stages:  # a run that did not follow them over training
        return
    for line in record.epochs:
        found = line.get("profiles", {})
        for name, depth in depths.items():
            values = found.get(name)
            where = f"epoch {line['epoch']}: profiles.{name}"
            if not isinstance(values, list) or len(values) != depth:
                raise _unsound(record, where)
            for value in values:
                _number(record, where, value)


def _noise(record: "Record") -> None:
    if record.noise is None:
        return
    levels, error, loss = record.noise.levels, record.noise.error, record.noise.loss
    _same(record, "noise", (levels, error, loss), not all((*error, *loss)))
    _every(record, "noise.levels", [levels], 0)
    _every(record, "noise.error", error, 0, 1)
    _every(record, "noise.loss", loss)


def _stability(record: "Record") -> None:
    if (growth := record.stability) is None:
        return
    lacking = not (set(KINDS) <= set(growth.log_growth) and set(KINDS) <= set(growth.log_end_to_end))
    _same(record, "stability", (growth.log_bound, *growth.log_growth.values()), lacking)
    _every(record, "stability.log_bound", [growth.log_bound])
    _every(record, "stability.log_growth", growth.log_growth.values())
    _every(record, "stability.log_end_to_end", [growth.log_end_to_end.values()])
    _every(record, "stability.step_sizes", [growth.step_sizes])


def _error(record: "Record", where: str, table: dict[str, Any], part: str) -> None:
    """The error of a part, as a fraction."""
    inner = table.get(part)
    _number(record, where, inner.get("error") if isinstance(inner, dict) else None, 0, 1)


def _every(
    record: "Record", where: str, rows: Iterable[Iterable[Any]], least: float = -_LARGEST, most: float = _LARGEST
) -> None:
    for row in rows:
        for value in row:
            _number(record, where, value, least, most)


def _number(record: "Record", where: str, value: Any, least: float = -_LARGEST, most: float = _LARGEST) -> None:
    if type(value) not in (int, float) or not least <= value <= most:  # which is never so for "not a number"
        raise _unsound(record, where)


def _numbers(record: "Record", where: str, table: Any) -> None:
    if not isinstance(table, dict):
        raise _unsound(record, where)
    for name, value in table.items():
        _number(record, f"{where}.{name}", value)


def _alike(record: "Record", where: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise RecordError(f"{record.path}: {where} is {found!r}, not {wanted!r}; restore the file or run it again")


def _text(record: "Record", where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _unsound(record, where)


def _same(record: "Record", where: str, lists: Iterable[Any], wrong: bool) -> None:
    lengths = {len(values) for values in lists}
    if wrong or len(lengths) > 1 or 0 in lengths:
        raise _unsound(record, where)


def _unsound(record: "Record", where: str) -> RecordError:
    return RecordError(f"{record.path}: {where} is missing or not what it must be; restore the file or run it again")
