import pytest
from scipy import stats

from timestepper.report.statistics import interval, paired, signed, slope

LOW = {0: 6.9, 1: 7.2, 2: 6.7, 5: 1.0}
HIGH = {0: 8.6, 1: 8.1, 2: 9.1, 4: 3.0}


def test_a_paired_interval_is_scipys():
    found = interval(paired(LOW, HIGH).values())
    expected = stats.ttest_rel([6.9, 7.2, 6.7], [8.6, 8.1, 9.1]).confidence_interval(0.95)
    assert found.count == 3
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_one_seed_has_a_mean_and_no_interval():
    found = interval([3.0])
    assert (found.mean, found.deviation, found.known) == (3.0, None, False)
    assert found.spread() == "3.00"


def test_spread_and_bounds_are_written_out():
    found = interval([1.0, 2.0, 3.0])
    assert found.spread() == "2.00 ± 1.00"
    assert found.bounds(1) == f"[{signed(-0.484, 1)}, +4.5]"


def test_a_mean_below_zero_has_a_real_minus_sign_and_zero_none():
    assert interval([-0.4, -0.44]).spread() == "\N{MINUS SIGN}0.42 ± 0.03"
    assert [interval([value]).spread() for value in (-0.42, -0.001)] == ["\N{MINUS SIGN}0.42", "0.00"]


def test_signs():
    assert [signed(value) for value in (1.234, -1.234, -0.001)] == ["+1.23", "\N{MINUS SIGN}1.23", "0.00"]


def test_slope_of_a_line():
    assert slope([(1, 5), (2, 3), (4, -1)]) == pytest.approx(-2)
