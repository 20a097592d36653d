"""Figures of one record whose numbers are chosen so that every other reading of it would give another figure."""

from dataclasses import replace

import pytest

from timestepper.report import quantities
from timestepper.report.records import Noise


def line(epoch, loss, error=None):
    return {"epoch": epoch, "train": {"loss": loss}} | ({} if error is None else {"test": {"error": error}})


def test_errors_are_percent_of_the_last_epoch_or_of_all_of_them(records):
    epochs = (line(1, 2.0, 0.5), line(2, 1.5, 0.1), line(3, 1.0, 0.3))
    final = {**records[0].final, "test": {"error": 0.3, "loss": 1.0}, "best": {"error": 0.1, "epoch": 2}}
    record = replace(records[0], epochs=epochs, final=final)
    assert quantities.test_error(record) == 30
    assert quantities.mean_test_error(record) == pytest.approx(30)
    assert quantities.error_curve(record) == [(1, 50), (2, 10), (3, 30)]
    assert quantities.loss_curve(record) == [(1, 2.0), (2, 1.5), (3, 1.0)]
    assert quantities.mean_test_error(replace(record, epochs=(line(1, 2.0), *epochs[1:]))) is None


def test_noise_is_averaged_over_draws_and_looked_up_by_its_level(records):
    noise = Noise((1.0, 0.0, 0.3), ((0.4, 0.6), (0.1, 0.1), (0.2, 0.3)), ((4.0, 5.0), (1.0, 1.5), (2.0, 2.0)))
    record = replace(records[0], noise=noise)
    assert dict(quantities.noise_curve(record, "error")) == pytest.approx({1.0: 50, 0.0: 10, 0.3: 25})
    assert quantities.noise_curve(record, "loss") == [(1.0, 4.5), (0.0, 1.25), (0.3, 2.0)]
    assert quantities.at_noise(record, "error", 0.1 + 0.2) == pytest.approx(25)
    assert quantities.at_noise(record, "error", 0.2) is None
    assert quantities.noise_loss_rise(record) == 3.25
    assert quantities.noise_loss_rise(replace(record, noise=None)) is None
    without_clean = replace(noise, levels=(1.0, 0.1, 0.3))
    assert quantities.noise_loss_rise(replace(record, noise=without_clean)) is None


def test_step_sizes_are_means_over_channels_by_stage_and_block(records):
    stages = {"a": ((0.2, 0.4), (0.9, 0.9)), "b": ((0.5, 0.7), (0.1, 0.1)), "c": ((0.6, 0.8), (0.7, 0.9), (0.8, 0.9))}
    record = replace(records[0], step_sizes=stages)
    assert quantities.steps_by_stage(record)[0] == pytest.approx([0.3, 0.9])
    assert quantities.first_steps_apart(record, 0.5) == pytest.approx(0.2)  # the last stage and later blocks are free
    assert quantities.last_stage_rise(record) == pytest.approx(0.15)
    assert quantities.last_stage_mean(record) == pytest.approx((0.7 + 0.8 + 0.85) / 3)
    assert quantities.paper_block(record, "C-2_1") == pytest.approx(0.3)
    assert quantities.paper_block(record, "C-4_3") == pytest.approx(0.85)
    assert quantities.paper_block(record, "C-4_4") is None
    plain = replace(record, step_sizes={})
    nothing = (quantities.last_stage_rise, quantities.last_stage_mean, lambda r: quantities.first_steps_apart(r, 0.5))
    assert [of(plain) for of in nothing] == [None] * 3
