import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from timestepper.errors import StabilityError
from timestepper.stability.ode import (
    EULER,
    FEHLBERG,
    Solution,
    Tableau,
    adaptive_steps,
    decay,
    decayed,
    figure_1,
    fixed_steps,
)


def pendulum(time, state):
    return np.array([state[1], -math.sin(state[0])])


def forced(time, value):
    """Depends on time as well, so that wrong nodes show up. Exact solution: sin(t) + exp(-t)."""
    return -value + math.sin(time) + math.cos(time)


def measured_order(method):
    errors = [
        abs(fixed_steps(forced, 1.0, 2.0, steps, method).values[-1] - (math.sin(2) + math.exp(-2)))
        for steps in (8, 16, 32)
    ]
    return [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]


@pytest.mark.parametrize(("method", "order"), [(EULER, 1), (FEHLBERG, 4), (FEHLBERG.higher(), 5)])
def test_each_method_converges_with_the_order_of_its_table(method, order):
    assert method.order == order
    assert measured_order(method)[-1] == pytest.approx(order, abs=0.25)


def test_the_table_is_consistent():
    for node, row in zip(FEHLBERG.nodes, FEHLBERG.stages, strict=True):
        assert sum(row) == pytest.approx(node)
    assert sum(FEHLBERG.weights) == pytest.approx(1)
    assert sum(FEHLBERG.embedded) == pytest.approx(1)


def test_any_tableau_runs():
    heun = Tableau("Heun", order=2, nodes=(0, 1), stages=((), (1,)), weights=(0.5, 0.5))
    assert measured_order(heun)[-1] == pytest.approx(2, abs=0.2)


def test_adaptive_steps_agree_with_scipy_on_a_system():
    ours = adaptive_steps(pendulum, [1.0, 0.0], 10.0, tolerance=1e-9)
    theirs = solve_ivp(pendulum, (0, 10), [1.0, 0.0], method="DOP853", rtol=1e-12, atol=1e-12)
    assert np.abs(ours.values[-1] - theirs.y[:, -1]).max() < 1e-6
    assert ours.times[-1] == 10.0


def test_a_tighter_tolerance_takes_more_steps_and_errs_less():
    loose, tight = (adaptive_steps(decay, 1.0, 3.0, tolerance=tolerance) for tolerance in (1e-3, 1e-7))
    assert tight.steps > loose.steps
    assert tight.error(decayed) < loose.error(decayed) / 100


def test_every_accepted_step_keeps_the_tolerance_and_the_rule():
    tolerance = 1e-5
    solution = adaptive_steps(forced, 1.0, 4.0, tolerance=tolerance, first_step=2.0)
    assert solution.rejected > 0  # the first step is far too large
    for time, value, size in zip(solution.times, solution.values, solution.step_sizes, strict=False):
        carried = fixed_steps(forced, value, time + size, 1, FEHLBERG, begin=time).values[-1]
        embedded = fixed_steps(forced, value, time + size, 1, FEHLBERG.higher(), begin=time).values[-1]
        assert abs(carried - embedded) <= tolerance * (1 + 1e-6)
        after = solution.values[list(solution.times).index(time) + 1]
        assert after == pytest.approx(carried, rel=1e-12)  # the method's own order is carried on, not the embedded one


def test_step_changes_stay_inside_their_limits():
    solution = adaptive_steps(lambda t, y: 0 * y, 1.0, 100.0, first_step=0.01, change=(0.5, 2.0))
    changes = solution.step_sizes[1:-1] / solution.step_sizes[:-2]
    assert changes == pytest.approx(2.0)


def test_a_step_that_is_thrown_away_shrinks_inside_the_limits():
    solution = adaptive_steps(forced, 1.0, 4.0, tolerance=1e-5, first_step=2.0, change=(0.5, 2.0))
    assert solution.rejected > 2
    assert solution.step_sizes[0] >= 2.0 * 0.5**solution.rejected


def test_a_step_that_overflows_is_tried_again_smaller():
    calls = []

    def steep(time, value):
        calls.append(time)
        assert len(calls) < 10_000
        return -(value**3)

    with np.errstate(over="ignore", invalid="ignore"):
        solution = adaptive_steps(steep, 1e3, 1.0, first_step=1.0, tolerance=1e-6)
    assert solution.rejected > 0
    assert solution.values[-1] == pytest.approx((2.0 + 1e-6) ** -0.5, abs=1e-4)


def test_the_worst_component_of_a_system_decides():
    one = adaptive_steps(decay, [1.0], 3.0)
    both = adaptive_steps(lambda t, y: np.array([-4 * y[0], 0.0]), [1.0, 1.0], 3.0)
    assert both.times.tolist() == one.times.tolist()


def test_the_error_of_a_solution_is_its_largest():
    assert Solution(np.arange(3.0), np.array([1.0, -3.0, 2.0])).error(lambda time: 1.0) == 4.0


def test_figure_1_shows_what_the_paper_says():
    large, small, adaptive = figure_1().values()
    assert large.error(decayed) > 1  # unstable: |1 - 4h| > 1
    assert abs(large.values[-1]) > abs(large.values[1]) > 1
    assert small.error(decayed) < 0.02
    assert adaptive.error(decayed) < 5e-3
    assert adaptive.steps < small.steps / 4
    assert figure_1(large=0.1, small=0.05, end=0.3)["Euler, h = 0.1"].steps == 3  # 0.3 / 0.1 is a little less than 3


def test_mistakes_are_said_in_one_line():
    with pytest.raises(StabilityError, match="no embedded method"):
        adaptive_steps(decay, 1.0, 1.0, method=EULER)
    with pytest.raises(StabilityError, match="tolerance > 0"):
        adaptive_steps(decay, 1.0, 1.0, tolerance=0)
    with pytest.raises(StabilityError, match="first step > 0"):
        adaptive_steps(decay, 1.0, 1.0, first_step=0)
    with pytest.raises(StabilityError, match="0 steps"):
        fixed_steps(decay, 1.0, 1.0, 0)
    with pytest.raises(StabilityError, match="raise the tolerance"):
        adaptive_steps(lambda t, y: y * y, 1.0, 2.0)  # has no solution past t = 1
