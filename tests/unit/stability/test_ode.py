import math

import numpy as np
import pytest

from timestepper.equations import local_error, rkf_step_size
from timestepper.stability import ode
from timestepper.stability.ode import Solution, euler, fehlberg, figure_1


def test_forward_euler_multiplies_by_one_minus_four_h():
    assert euler(0.6, 3.0).values == pytest.approx([(-1.4) ** n for n in range(6)])
    assert euler(0.1, 0.3).steps == 3  # 0.3 / 0.1 is a little less than 3


def both_orders(value, size):
    """One step of Fehlberg's method on y' = -4 y: a polynomial in z = -4 h. Order 4 and 5 agree with the series of
    exp(z) up to their order; what is left of the six stages are the last terms."""
    z = -4 * size
    series = sum(z**n / math.factorial(n) for n in range(5))
    return value * (series + z**5 / 104), value * (series + z**5 / 120 + z**6 / 2080)


@pytest.mark.parametrize(("tolerance", "first_step"), [(1e-3, 0.1), (1e-5, 0.05), (1e-8, 0.01)])
def test_the_steps_are_fehlbergs_and_follow_equations_5_and_6(tolerance, first_step):
    found = fehlberg(tolerance, 3.0, first_step)
    sizes = np.diff(found.times)
    for step, size in enumerate(sizes):
        carried, higher = both_orders(found.values[step], size)
        assert found.values[step + 1] == pytest.approx(carried, rel=1e-9)  # order 4 is carried on
        error = local_error(carried, higher)
        assert error <= tolerance * (1 + 1e-5)
        if step + 2 < len(sizes):  # the last one ends where the figure does
            wanted = min(rkf_step_size(size, error, tolerance), 10 * size)
            assert sizes[step + 1] == pytest.approx(wanted, rel=1e-5)
    assert found.times[-1] == 3.0
    assert found.rejected == 0


def test_a_first_step_that_is_too_long_is_tried_again():
    found = fehlberg(1e-5, 3.0, first_step=2.0)
    assert found.rejected > 0
    assert found.times[1] < 0.5


def test_a_tighter_tolerance_takes_more_steps_and_errs_less():
    loose, tight = fehlberg(1e-3, 3.0), fehlberg(1e-7, 3.0)
    assert tight.steps > loose.steps
    assert tight.error < loose.error / 100


def test_the_error_of_a_solution_is_its_largest():
    times = np.arange(3.0)
    values = np.array([ode.exact(time) for time in times])
    assert Solution(times, values + np.array([0.0, -4.0, 1.0])).error == pytest.approx(4.0)


def test_figure_1_shows_what_the_paper_says():
    large, small, adaptive = figure_1().values()
    assert large.error > 1  # unstable: |1 - 4h| > 1
    assert abs(large.values[-1]) > abs(large.values[1]) > 1
    assert small.error < 0.02
    assert adaptive.error < 5e-3
    assert adaptive.steps < small.steps / 4
