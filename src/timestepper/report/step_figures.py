"""Figures of what goes on inside: step sizes over depth and training, stability, and the paper's Figure 1."""

import math
from collections.abc import Callable, Sequence

from timestepper.report import quantities, svg
from timestepper.report.compare import by_task
from timestepper.report.figures import Figure, Panel, draw
from timestepper.report.groups import Group, Task
from timestepper.report.names import subject_name
from timestepper.report.records import Growth

_COLUMNS = 48  # of a heat map over training
_FLOAT = 690.0  # natural logarithm of about 10^300
_LARGE = math.log(1e6)


def step_sizes(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """Step sizes over depth (down) and training (across), the first seed of each group that learns them."""
    panels = []
    for group in groups:
        seed, record = next(iter(group.runs.items()))
        stages = [name for name in record.epochs[-1].get("profiles", {}) if name.startswith("step_sizes/")]
        if not stages or group.subject.startswith("fixed"):
            continue
        epochs = _thinned(len(record.epochs))
        rows, names = [], []
        for stage in stages:
            depth = len(record.epochs[-1]["profiles"][stage])
            rows += [[record.epochs[e]["profiles"][stage][d] for e in epochs] for d in range(depth)]
            names += [stage.removeprefix("step_sizes/")] + [""] * (depth - 1)
        heading = f"{subject_name(group.subject)}, {label(group.task)}, seed {seed}"
        ends = [
            f"{n}: {d[0]:.2f} to {d[-1]:.2f}" for n, d in zip(stages, quantities.steps_by_stage(record), strict=True)
        ]
        text = "Final step sizes from the first to the last block: " + "; ".join(ends)
        last = str(len(record.epochs))
        drawing = svg.heat_map(rows, names, "epoch", ("1", last), f"Step sizes over training, {heading}", text)
        panels.append(Panel("", heading, drawing))
    caption = (
        "Each row is a block, first block on top, stages named at their first block; each column an epoch. The colour "
        "runs from empty (step size 0) to full (1); learned step sizes start near 0.5. Averaged over channels."
    )
    legend = (("heat0", "0"), ("heat50", "0.5"), ("heat100", "1"))
    return Figure("steps", "Step sizes over depth and training", caption, tuple(panels), legend) if panels else None


def final_steps(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """Final step sizes over depth: mean over seeds with their range."""
    panels = []
    for group in groups:
        profiles = [[dt for s in quantities.steps_by_stage(r) for dt in s] for r in group.runs.values()]
        if not profiles[0] or len(profiles[0]) < 2 or group.subject.startswith("fixed"):
            continue
        plot = svg.Plot((1, len(profiles[0])), (0, 1), "block", "step size")
        text = draw(plot, [list(enumerate(profile, 1)) for profile in profiles], "stepped", "step size")
        title = f"Final step sizes, {subject_name(group.subject)}, {label(group.task)}"
        panels.append(Panel("", f"{subject_name(group.subject)}, {label(group.task)}", plot.svg(title, text)))
    caption = "Final step sizes over all blocks, averaged over channels. Lines are means over seeds, shades the range."
    legend = (("stepped", "step size"),)
    return Figure("final-steps", "Final step sizes", caption, tuple(panels), legend) if panels else None


def stability(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """The bound of Proposition 1 and measured growth, block by block, with the step sizes; a task has one axis."""
    panels, logs = [], []
    for task, bundle in by_task(groups).items():
        first = {g.subject: [(seed, r.stability) for seed, r in g.runs.items() if r.stability][:1] for g in bundle}
        drawn = [(subject, seed, found, _lines(found)) for subject, runs in first.items() for seed, found in runs]
        values = [value for *_, lines in drawn for line in lines for value in line if value > 0]
        for subject, seed, found, lines in drawn:
            plot = svg.Plot((1, len(found.log_bound)), (min(values), max(values)), "block", "factor", log_y=True)
            for line, css in zip(lines, ("plain", "stepped", "quiet"), strict=True):
                if line:
                    plot.line(list(enumerate(line, 1)), css)
            heading = f"{subject_name(subject)}, seed {seed}"
            text = f"Bound {_in_words(found.log_bound)}, measured growth {_in_words(_largest(found))}"
            title = f"Stability bound and measured growth, {label(task)}: {heading}"
            panels.append(Panel(label(task), heading, plot.svg(title, text)))
            logs += [*found.log_bound, *_largest(found)]
    cut = " A factor beyond 10^300 is drawn there." if any(abs(log) > _FLOAT for log in logs) else ""
    caption = (
        "Per block: the factor of Proposition 1 with the real operators, the largest measured growth of a small "
        "perturbation, and the mean step size. Norms are power iteration's, from below, until ten rounds add less "
        f"than 0.01 %; the measured growth can never exceed the bound with the exact ones.{cut}"
    )
    legend = (("plain", "bound"), ("stepped", "measured growth"), ("quiet", "step size"))
    return Figure("stability", "Bound and measured growth", caption, tuple(panels), legend) if panels else None


def _lines(growth: Growth) -> tuple[list[float], list[float], list[float]]:
    """Bound, largest measured growth and step size of every block."""
    bound, largest = ([_factor(log) for log in logs] for logs in (growth.log_bound, _largest(growth)))
    return bound, largest, list(growth.step_sizes)


def _largest(growth: Growth) -> list[float]:
    """The logarithm of the largest growth that any search found, block by block."""
    return [max(logs) for logs in zip(*growth.log_growth.values(), strict=True)]


def _factor(log: float) -> float:
    """A factor by its natural logarithm; one that a float cannot hold is drawn at the edge of what it can."""
    return math.exp(min(max(log, -_FLOAT), _FLOAT))


def _in_words(logs: Sequence[float]) -> str:
    """The smallest and the largest factor: ``0.97 to 1.84``, as powers of ten where they are large."""
    ends = (min(logs), max(logs))
    return " to ".join(f"{math.exp(log):.2f}" if log < _LARGE else f"10^{log / math.log(10):.0f}" for log in ends)


def initial_value_problem(solutions: dict) -> Figure:
    """Figure 1: two fixed steps and the adaptive method on y' = -4y."""
    exact = list(zip(solutions["exact"]["times"], solutions["exact"]["values"], strict=True))
    panels = []
    for key in ("large", "small", "rkf"):
        found = solutions[key]
        points = list(zip(found["times"], found["values"], strict=True))
        ends = [value for _, value in points + exact]
        plot = svg.Plot((0, max(found["times"])), (min(ends), max(ends)), "t", "y")
        plot.line(exact, "quiet")
        plot.line(points, "stepped")
        for point in points if len(points) < 40 else ():
            plot.dot(point, "stepped")
        text = f"{found['steps']} steps, largest error {found['error']:.2g}"
        panels.append(Panel("", f"{found['label']}: {text}", plot.svg(f"y' = -4y, {found['label']}", text)))
    caption = "y' = -4y, y(0) = 1. A large fixed step is unstable, a small one needs many steps, the adaptive one few."
    legend = (("quiet", "exact"), ("stepped", "numerical"))
    return Figure("fig1", "Figure 1: an initial value problem", caption, tuple(panels), legend)


def _thinned(count: int) -> list[int]:
    """At most so many epochs, the first and the last among them."""
    if count <= _COLUMNS:
        return list(range(count))
    return [round(number * (count - 1) / (_COLUMNS - 1)) for number in range(_COLUMNS)]
