"""Figures of one record whose numbers are chosen so that every other reading of it would give another figure."""

from dataclasses import replace

import pytest

from timestepper.records.record import Noise, Outcome
from timestepper.report import quantities


def test_errors_are_percent_of_the_last_epoch_or_of_all_of_them(records):
    final = replace(records[0].final, test=Outcome(0.3))
    record = replace(records[0], loss=(2.0, 1.5, 1.0), error=(0.5, 0.1, 0.3), final=final)
    assert quantities.test_error(record) == 30
    assert quantities.error_curve(record) == [(1, 50), (2, 10), (3, 30)]
    assert quantities.loss_curve(record) == [(1, 2.0), (2, 1.5), (3, 1.0)]


def test_the_error_of_a_tenth_of_the_training_needs_all_its_epochs(records):
    errors = [number / 100 for number in range(1, 21)]
    record = replace(records[0], error=errors)
    assert [quantities.training_error(record, tenth) for tenth in (1, 2, 10)] == pytest.approx([1.5, 3.5, 19.5])
    without = replace(record, error=(None, *errors[1:]))
    assert [quantities.training_error(without, tenth) is None for tenth in (1, 2)] == [True, False]
    assert quantities.training_error(replace(record, error=errors[:5]), 1) is None
    uneven = replace(record, error=errors[:13])
    assert all(quantities.training_error(uneven, tenth) for tenth in range(1, 11))


def test_noise_is_averaged_over_draws_and_looked_up_by_its_level(records):
    noise = Noise((1.0, 0.0, 0.3), ((0.4, 0.6), (0.1, 0.1), (0.2, 0.3)), ((4.0, 5.0), (1.0, 1.5), (2.0, 2.0)))
    record = replace(records[0], noise=noise)
    assert dict(quantities.noise_curve(record, "error")) == pytest.approx({1.0: 50, 0.0: 10, 0.3: 25})
    assert quantities.noise_curve(record, "loss") == [(1.0, 4.5), (0.0, 1.25), (0.3, 2.0)]
    assert quantities.at_noise(record, "error", 0.1 + 0.2) == pytest.approx(25)
    assert quantities.at_noise(record, "error", 0.2) is None
    assert quantities.noise_rise(record, 0.3) == pytest.approx(15)
    assert quantities.noise_rise(record, 0.2) is None
    assert quantities.noise_loss_rise(record) == 3.25
    assert quantities.noise_loss_rise(replace(record, noise=None)) is None
    without_clean = replace(noise, levels=(1.0, 0.1, 0.3))
    assert quantities.noise_loss_rise(replace(record, noise=without_clean)) is None
    weak_only = replace(noise, levels=(0.9, 0.0, 0.3))  # its rise is less, and no sign of robustness
    assert quantities.noise_loss_rise(replace(record, noise=weak_only)) is None


def test_step_sizes_are_means_over_channels_by_stage_and_block(records):
    stages = {"a": ((0.2, 0.4), (0.9, 0.9)), "b": ((0.5, 0.7), (0.1, 0.1)), "c": ((0.6, 0.8), (0.7, 0.9), (0.8, 0.9))}
    record = replace(records[0], step_sizes=stages)
    assert quantities.steps_by_stage(record)[0] == pytest.approx([0.3, 0.9])
    assert quantities.first_steps_apart(record, 0.5) == pytest.approx(0.2)  # the last stage and later blocks are free
    assert quantities.first_steps_apart(record, 0.3, last=True) == pytest.approx(0.4)
    assert quantities.last_stage_apart(record, 1.0) == pytest.approx(0.3)
    assert quantities.last_stage_rise(record) == pytest.approx(0.075)
    assert quantities.last_stage_least(record) == pytest.approx(0.05)
    turned = replace(record, step_sizes={"a": ((0.1,),), "b": ((0.5,), (0.9,), (0.2,), (0.6,), (0.95,))})
    assert quantities.last_stage_least(turned) == pytest.approx(-0.7)
    assert quantities.last_stage_mean(record) == pytest.approx((0.7 + 0.8 + 0.85) / 3)
    assert quantities.paper_block(record, "C-2_1") == pytest.approx(0.3)
    assert quantities.paper_block(record, "C-4_3") == pytest.approx(0.85)
    assert quantities.paper_block(record, "C-4_4") is None
    plain = replace(record, step_sizes={})
    nothing = (quantities.last_stage_rise, quantities.last_stage_mean, quantities.last_stage_least)
    assert [of(plain) for of in nothing] == [None] * 3
    assert [of(plain, 0.5) for of in (quantities.first_steps_apart, quantities.last_stage_apart)] == [None] * 2
