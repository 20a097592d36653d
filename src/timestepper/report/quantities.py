"""Figures that are read off one record. Errors in percent; the last epoch, never the best."""

import math

from timestepper.report.records import Record


def test_error(record: Record) -> float:
    return 100 * record.final["test"]["error"]


def mean_test_error(record: Record) -> float | None:
    """Over all epochs: who is ahead during the whole training. None where some were not evaluated.

    Runs that were looked at at other times have means of other parts of training, which do not compare.
    """
    curve = [error for _, error in error_curve(record)]
    return math.fsum(curve) / len(curve) if len(curve) == len(record.epochs) else None


def error_curve(record: Record) -> list[tuple[float, float]]:
    """(epoch, test error in percent) of the evaluated epochs."""
    return [(line["epoch"], 100 * line["test"]["error"]) for line in record.epochs if "test" in line]


def loss_curve(record: Record) -> list[tuple[float, float]]:
    """(epoch, training loss)."""
    return [(line["epoch"], line["train"]["loss"]) for line in record.epochs]


def noise_curve(record: Record, what: str) -> list[tuple[float, float]]:
    """(noise level, error in percent or loss), averaged over draws; empty where noise was not measured."""
    if record.noise is None:
        return []
    rows, unit = (record.noise.error, 100.0) if what == "error" else (record.noise.loss, 1.0)
    return [(level, unit * math.fsum(row) / len(row)) for level, row in zip(record.noise.levels, rows, strict=True)]


def at_noise(record: Record, what: str, level: float) -> float | None:
    return next((value for found, value in noise_curve(record, what) if math.isclose(found, level)), None)


def noise_loss_rise(record: Record) -> float | None:
    """Loss at the strongest noise less the loss without."""
    curve = sorted(noise_curve(record, "loss"))
    return curve[-1][1] - curve[0][1] if len(curve) > 1 and curve[0][0] == 0 else None


def steps_by_stage(record: Record) -> list[list[float]]:
    """Final step sizes averaged over channels, stage by stage in depth order; empty for a plain network."""
    return [[math.fsum(row) / len(row) for row in stage] for stage in record.step_sizes.values()]


def first_steps_apart(record: Record, value: float) -> float | None:
    """How far the first step of any stage but the last is from a value, at most."""
    stages = steps_by_stage(record)
    return max(abs(stage[0] - value) for stage in stages[:-1]) if len(stages) > 1 else None


def last_stage_rise(record: Record) -> float | None:
    """By how much the step size grows from the first to the last block of the last stage."""
    stages = steps_by_stage(record)
    return stages[-1][-1] - stages[-1][0] if stages and len(stages[-1]) > 1 else None


def last_stage_mean(record: Record) -> float | None:
    stages = steps_by_stage(record)
    return math.fsum(stages[-1]) / len(stages[-1]) if stages else None


def paper_block(record: Record, block: str) -> float | None:
    """The step size of a block by the paper's name: C-3_1 is the first block of the second stage."""
    stage, _, place = block.removeprefix("C-").partition("_")
    try:
        return steps_by_stage(record)[int(stage) - 2][int(place) - 1]
    except IndexError:
        return None
