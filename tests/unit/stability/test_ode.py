import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from timestepper.errors import StabilityError
from timestepper.stability.ode import (
    EULER,
    FEHLBERG,
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


def test_step_changes_stay_inside_their_limits():
    solution = adaptive_steps(lambda t, y: 0 * y, 1.0, 100.0, first_step=0.01, change=(0.5, 2.0))
    changes = solution.step_sizes[1:-1] / solution.step_sizes[:-2]
    assert changes == pytest.approx(2.0)


def test_figure_1_shows_what_the_paper_says():
    large, small, adaptive = figure_1().values()
    assert large.error(decayed) > 1  # unstable: |1 - 4h| > 1
    assert abs(large.values[-1]) > abs(large.values[1]) > 1
    assert small.error(decayed) < 0.02
    assert adaptive.error(decayed) < 5e-3
    assert adaptive.steps < small.steps / 4


def test_mistakes_are_said_in_one_line():
    with pytest.raises(StabilityError, match="no embedded method"):
        adaptive_steps(decay, 1.0, 1.0, method=EULER)
    with pytest.raises(StabilityError, match="tolerance > 0"):
        adaptive_steps(decay, 1.0, 1.0, tolerance=0)
    with pytest.raises(StabilityError, match="0 steps"):
        fixed_steps(decay, 1.0, 1.0, 0)
    with pytest.raises(StabilityError, match="raise the tolerance"):
        adaptive_steps(lambda t, y: y * y, 1.0, 2.0)  # has no solution past t = 1
