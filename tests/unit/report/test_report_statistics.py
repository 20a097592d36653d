import math

import pytest
from scipy import stats

from timestepper.report.statistics import (
    CONTRADICTED,
    EQUAL,
    OPEN,
    SUPPORTED,
    Estimate,
    Part,
    average,
    combine,
    decide,
    difference,
    holm,
    mean_of,
    p_of,
    rank_correlation,
    signed,
    slope,
    together,
)

LOW, HIGH = [6.9, 7.2, 6.7], [8.6, 8.1, 9.1]


def test_a_mean_s_interval_is_scipys():
    expected = stats.ttest_1samp(LOW, 0)
    for confidence in (0.95, 0.9):
        assert mean_of(LOW).interval(confidence) == pytest.approx(tuple(expected.confidence_interval(confidence)))


def test_a_difference_is_scipys_welch_with_degrees_of_freedom_rounded_down():
    found, expected = difference(mean_of(LOW), mean_of(HIGH)), stats.ttest_ind(LOW, HIGH, equal_var=False)
    assert found.freedom == pytest.approx(expected.df)
    assert found.mean / found.error == pytest.approx(expected.statistic)
    assert 2 < expected.df < 3
    half = stats.t.ppf(0.975, 2) * found.error
    assert found.interval() == pytest.approx((found.mean - half, found.mean + half))
    assert found.chance(0) == pytest.approx(stats.t.cdf(expected.statistic, 2))
    assert found.chance(0, above=True) == pytest.approx(1 - found.chance(0))
    assert found.counts == (3, 3)


def test_with_unequal_seeds_the_smaller_arm_decides_how_sure_one_can_be():
    found = difference(mean_of(LOW), mean_of([*HIGH, 8.5, 8.7, 8.8]))
    assert (found.freedom, found.counts, found.seeds()) == (2, (3, 6), "3 and 6 seeds")
    assert average([found, found]).seeds() == "3 to 6 seeds each"


def test_averages_of_settings_and_slopes_are_sums_of_independent_means():
    """An average of two differences is Welch's t with four arms, whose formula is written out here."""
    arms = [LOW, HIGH, [5.0, 5.5, 5.1, 5.2], [6.0, 6.3, 6.1, 6.9]]
    pairs = [difference(mean_of(arms[0]), mean_of(arms[1])), difference(mean_of(arms[2]), mean_of(arms[3]))]
    squares = [stats.sem(arm) ** 2 / 4 for arm in arms]
    freedom = sum(squares) ** 2 / sum(s**2 / (len(arm) - 1) for s, arm in zip(squares, arms, strict=True))
    found = average(pairs)
    assert found.mean == pytest.approx((pairs[0].mean + pairs[1].mean) / 2)
    assert (found.error, found.freedom) == pytest.approx((sum(squares) ** 0.5, freedom))
    line = slope([(x, mean_of([y - 0.1, y + 0.1])) for x, y in ((1, 5), (2, 3), (4, -1))])
    assert line.mean == pytest.approx(-2)
    assert line.error == pytest.approx(0.1 / (14 / 3) ** 0.5)
    assert combine((2,), (mean_of(LOW),)).error == pytest.approx(2 * stats.sem(LOW))


def test_one_seed_has_a_mean_and_no_interval_and_seeds_that_agree_have_none_either():
    found = mean_of([3.0])
    assert (found.mean, found.deviation, found.known) == (3.0, None, False)
    assert (found.spread(), found.bounds()) == ("3.00", "no interval from one seed")
    assert difference(found, mean_of(LOW)).bounds() == "no interval from one seed"
    assert mean_of([3.1, 3.1, 3.1]).bounds() == "no interval, the seeds do not differ"
    assert difference(mean_of([3.1, 3.1, 3.1]), mean_of(LOW)).known


def test_spread_and_bounds_are_written_out():
    found = mean_of([1.0, 2.0, 3.0])
    assert found.spread() == "2.00 ± 1.00"
    assert found.bounds(1) == f"[{signed(-0.484, 1)}, +4.5]"


def test_a_mean_below_zero_has_a_real_minus_sign_and_zero_none():
    assert mean_of([-0.4, -0.44]).spread() == "\N{MINUS SIGN}0.42 ± 0.03"
    assert [mean_of([value]).spread() for value in (-0.42, -0.001)] == ["\N{MINUS SIGN}0.42", "0.00"]


def test_signs():
    assert [signed(value) for value in (1.234, -1.234, -0.001)] == ["+1.23", "\N{MINUS SIGN}1.23", "0.00"]


def test_holm_makes_the_smallest_chance_largest_and_keeps_the_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.001]) == pytest.approx([0.5, 0.002])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]


def test_many_statements_together_need_less_than_with_holm_and_more_than_alone():
    assert together([0.01, 0.02, 0.9, 0.8]) == pytest.approx([0.04, 0.04, 0.9, 0.9])
    assert together([0.04]) == [0.04]
    assert together([]) == []


def lies(mean, **keys):
    return Part(Estimate(mean, (3, 3), 0.1, 4), "difference", points=True, **keys)


@pytest.mark.parametrize(
    ("parts", "state", "p"),
    [
        ([lies(-0.5), lies(-1.0)], SUPPORTED, 2 * stats.t.sf(5, 4)),  # its weakest part
        ([lies(-0.5), lies(0.1, veto=True, bound=0.3)], SUPPORTED, 2 * stats.t.sf(5, 4)),  # a veto is not tested
        ([lies(0.03, bound=0.3)], SUPPORTED, stats.t.sf(2.7, 4)),  # a margin is asked from one side
        ([lies(0.5), lies(-1.0), lies(0.0)], CONTRADICTED, 3 * 2 * stats.t.sf(5, 4)),  # one of three
        ([lies(0.02)], EQUAL, stats.t.sf(2.8, 4)),  # its nearer edge
        ([lies(-0.2)], OPEN, None),
    ],
)
def test_a_state_has_the_p_that_it_was_decided_by(parts, state, p):
    assert decide(parts) == state
    assert p_of(state, parts) == (p and pytest.approx(p))
    assert p is None or p <= 0.05


def test_a_rank_correlation_is_spearman_s_on_fisher_s_scale():
    xs, ys = [1, 2, 3, 4, 5, 6], [2, 1, 4, 3, 6, 50]
    assert math.tanh(rank_correlation(xs, ys).mean) == pytest.approx(stats.spearmanr(xs, ys).statistic)
    assert math.isfinite(rank_correlation(xs, xs).mean)
