"""Figures that are read off one record. Errors in percent; the last epoch, never the best."""

import math
from itertools import accumulate
from statistics import linear_regression

from timestepper.records.record import NOISE_LEVELS, Record

Curve = list[tuple[float, float]]


def test_error(record: Record) -> float:
    return 100 * record.final.test.error


def training_error(record: Record, tenth: int) -> float | None:
    """Test error averaged over a tenth of the training, 1 to 10. None where an epoch of it was not evaluated.

    Runs that were looked at at other times have means of other parts of training, which do not compare.
    """
    total = len(record.error)
    part = record.error[(tenth - 1) * total // 10 : tenth * total // 10]
    errors = [100 * error for error in part if error is not None]
    return math.fsum(errors) / len(errors) if errors and len(errors) == len(part) else None


def log_bound(record: Record) -> float | None:
    """Natural logarithm of Proposition 1's bound."""
    return math.fsum(record.stability.log_bound) if record.stability else None


def error_curve(record: Record) -> Curve:
    """(epoch, test error in percent) of the evaluated epochs."""
    return [(epoch, 100 * error) for epoch, error in enumerate(record.error, 1) if error is not None]


def loss_curve(record: Record) -> Curve:
    """(epoch, training loss)."""
    return list(enumerate(record.loss, 1))


def noise_curve(record: Record, what: str) -> Curve:
    """(noise level, error in percent or loss), averaged over draws; empty where noise was not measured."""
    if record.noise is None:
        return []
    rows, unit = (record.noise.error, 100.0) if what == "error" else (record.noise.loss, 1.0)
    return [(level, unit * math.fsum(row) / len(row)) for level, row in zip(record.noise.levels, rows, strict=True)]


def at_noise(record: Record, what: str, level: float) -> float | None:
    return next((value for found, value in noise_curve(record, what) if math.isclose(found, level)), None)


def noise_rise(record: Record, level: float, what: str = "error") -> float | None:
    """Error (or loss) at a noise level minus that without noise."""
    noisy, clean = at_noise(record, what, level), at_noise(record, what, 0.0)
    return None if noisy is None or clean is None else noisy - clean


def noise_loss_rise(record: Record) -> float | None:
    """Loss at the strongest noise minus the loss without."""
    return noise_rise(record, NOISE_LEVELS[-1], "loss")


def steps_by_stage(record: Record) -> list[list[float]]:
    """Final step sizes averaged over channels, stage by stage in depth order; empty for a plain network."""
    return [[math.fsum(row) / len(row) for row in stage] for stage in record.step_sizes.values()]


def _last_stage(record: Record) -> list[float]:
    return (steps_by_stage(record) or [[]])[-1]


def first_steps_apart(record: Record, value: float, last: bool = False) -> float | None:
    """How far the first step of any stage is from a value, at most; ``last``: also that of the last stage."""
    stages = steps_by_stage(record)
    chosen = stages if last else stages[:-1]
    return max(abs(stage[0] - value) for stage in chosen) if len(stages) > 1 else None


def last_stage_apart(record: Record, value: float) -> float | None:
    """How far any step of the last stage is from a value, at most."""
    return max((abs(step - value) for step in _last_stage(record)), default=None)


def last_stage_rise(record: Record) -> float | None:
    """By how much the step size grows from block to block of the last stage: the slope over all of them."""
    stage = _last_stage(record)
    return linear_regression(range(len(stage)), stage).slope if len(stage) > 1 else None


def last_stage_least(record: Record) -> float | None:
    """By how much a block of the last stage is ahead of all earlier ones, at least: below 0 where one falls behind."""
    stage = _last_stage(record)
    return min((step - most for most, step in zip(accumulate(stage, max), stage[1:], strict=False)), default=None)


def last_stage_mean(record: Record) -> float | None:
    stage = _last_stage(record)
    return math.fsum(stage) / len(stage) if stage else None


def paper_block(record: Record, block: str) -> float | None:
    """The step size of a block by the paper's name: C-3_1 is the first block of the second stage."""
    stage, _, place = block.removeprefix("C-").partition("_")
    try:
        return steps_by_stage(record)[int(stage) - 2][int(place) - 1]
    except IndexError:
        return None
