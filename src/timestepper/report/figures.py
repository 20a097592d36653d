"""The figures of the page: each is a set of small panels with one legend and one caption."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from timestepper.records.record import Record, Stability
from timestepper.records.subject import PLAIN, Subject
from timestepper.report import quantities, svg
from timestepper.report.groups import Arm, Label, Task, arm_of, by_task, condition_labels, differences, same_start_of
from timestepper.report.names import data_name
from timestepper.report.quantities import Curve
from timestepper.report.statistics import Estimate, signed

_FAR = 4  # times the middle of all bars
_COLUMNS = 48  # of a heat map over training
_FLOAT = 690.0  # natural logarithm of about 10^300
_LSTM = Subject("lstm")


@dataclass(frozen=True)
class Panel:
    """One drawing under a heading; panels of one ``group`` stand together under its name."""

    group: str
    heading: str
    drawing: str


@dataclass(frozen=True)
class Figure:
    """Panels that are read together. ``legend`` pairs a series' style with its name."""

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    legend: tuple[tuple[str, str], ...] = (("plain", "plain"), ("stepped", "the network that the panel names"))

    @property
    def groups(self) -> list[tuple[str, list[Panel]]]:
        return [(name, list(panels)) for name, panels in itertools.groupby(self.panels, lambda panel: panel.group)]


def comparison(arms: Sequence[Arm], label: Label) -> Figure:
    """Differences to the plain network with their intervals, a panel per task and base, all on the same axis."""
    found: list[tuple[str, list[tuple[Arm, Estimate]]]] = []
    for task, bundle in sorted(by_task(arms).items(), key=lambda item: -len(item[1])):
        bases = {"plain": arm_of(bundle), "plain that starts at half steps": same_start_of(bundle)}
        for name, base in bases.items():
            known = [pair for pair in differences(bundle, base) if pair[1].known] if base else []
            if known:
                found.append((f"Minus {name}: {label(task)}", known))
    span = _axis([apart.interval() for _, pairs in found for _, apart in pairs])
    panels = []
    for heading, pairs in found:
        rows = [(f"{arm.subject.label}: {signed(a.mean)} {a.bounds()}", a.mean, a.interval()) for arm, a in pairs]
        said = "; ".join(row[0] for row in rows)
        drawing = svg.forest(rows, span, "percentage points; left of 0 is better", f"Test error. {heading}", said)
        panels.append(Panel("", heading, drawing))
    caption = (
        "Test error of the last epoch minus that of a plain network. Points are means over seeds, bars 95% intervals "
        "of the difference (Welch). An arrow ends a bar that goes on beyond the axis; a row without a point has its "
        "mean there too. A controller starts with step sizes of about one half, so the plain network whose blocks "
        "start at half their size is the fair one to compare with."
    )
    return Figure("comparison", "What is better than the plain network?", caption, panels, ())


def _axis(bars: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """From end to end of all bars and zero, but for bars far beyond the others, which would leave these no room."""
    reach = [max(abs(low), abs(high)) for low, high in bars]
    most = _FAR * median(reach or [0.0])
    ends = [end for bar, far in zip(bars, reach, strict=True) if far <= most for end in bar]
    return min([0.0, *ends]), max([0.0, *ends])


def learning_curves(arms: Sequence[Arm], label: Label) -> Figure:
    """Test error and training loss over epochs: plain against one other subject in each panel."""
    caption = (
        "Lines are means over seeds, shades run from the best to the worst seed. The vertical axes are logarithmic. "
        "The training loss is that of a whole epoch, with augmentation; tables report the test error of the last epoch."
    )
    measures = ((quantities.error_curve, "test error, %"), (quantities.loss_curve, "training loss"))
    return Figure("curves", "Learning curves", caption, _duels(arms, label, measures, "epoch", log_y=True))


def noise(arms: Sequence[Arm], label: Label) -> Figure:
    """Test error and loss over the standard deviation of the input noise."""
    measures = (
        (lambda record: quantities.noise_curve(record, "error"), "test error, %"),
        (lambda record: quantities.noise_curve(record, "loss"), "test loss"),
    )
    caption = (
        "Gaussian noise added to the normalised test images; every point averages several draws. Lines are means over "
        "seeds, shades run from the best to the worst seed."
    )
    panels = _duels(arms, label, measures, "standard deviation of noise")
    return Figure("noise", "Accuracy and loss under noise", caption, panels)


def _duels(
    arms: Sequence[Arm],
    label: Label,
    measures: Sequence[tuple[Callable[[Record], Curve], str]],
    x_label: str,
    log_y: bool = False,
) -> list[Panel]:
    """One panel per arm that is not plain, with the plain one beside it, all of a task on the same axes.

    All measures of a task follow each other before the next task comes.
    """
    panels = []
    for (task, bundle), (curve, y_label) in itertools.product(by_task(arms).items(), measures):
        curves = {arm.subject: [c for c in map(curve, arm.runs.values()) if len(c) > 1] for arm in bundle}
        curves = {subject: found for subject, found in curves.items() if found}
        points = [point for found in curves.values() for line in found for point in line]
        if not points:
            continue
        places, values = zip(*points, strict=True)
        # Zeros lie below any logarithmic axis, so curves of nothing else get 1 to 1.
        low = min((value for value in values if value > 0), default=1.0) if log_y else min(0.0, *values)
        span, heights = (min(places), max(places)), (low, max(low, *values))
        what = y_label.partition(",")[0]
        others = [subject for subject in curves if subject != PLAIN] or [PLAIN]
        for subject in others:
            plot = svg.Plot(span, heights, x_label, y_label, log_y=log_y)
            series = {PLAIN: "plain"} | ({} if subject == PLAIN else {subject: "stepped"})
            text = [draw(plot, curves[of], css, of.label) for of, css in series.items() if of in curves]
            title = f"{y_label} over {x_label}, {label(task)}: {subject.label}"
            group = f"{label(task)}: {what}" if len(others) > 1 else label(task)
            panels.append(Panel(group, f"{subject.label}: {what}", plot.svg(title, "; ".join(text))))
    return panels


def draw(plot: svg.Plot, curves: list[Curve], css: str, name: str) -> str:
    """A mean line in its range; says in words where it starts and ends, or that the seeds share no point to draw."""
    tables = [dict(curve) for curve in curves]
    values = {x: [table[x] for table in tables] for x in tables[0] if all(x in table for table in tables)}
    if not values:
        return f"{name}: no point that all seeds have"
    mean = [(x, math.fsum(v) / len(v)) for x, v in values.items()]
    if len(curves) > 1:
        plot.band([(x, min(v)) for x, v in values.items()], [(x, max(v)) for x, v in values.items()], css)
    plot.line(mean, css)
    return f"{name} from {mean[0][1]:.3g} at {mean[0][0]:g} to {mean[-1][1]:.3g} at {mean[-1][0]:g}"


def depth(arms: Sequence[Arm], how: Callable[[Task, str], str]) -> Figure:
    """Test error over depth, plain and with the paper's controller; only where two depths or more were run.

    A panel holds the runs whose conditions agree in everything but the network: a depth that was also run with
    another precision must not lend its point to the others.
    """
    sets: dict[Task, list[Arm]] = {}
    for arm in arms:
        if arm.task.model.startswith("cifar/resnet") and arm.subject in (PLAIN, _LSTM):
            sets.setdefault(replace(arm.task, model=""), []).append(arm)
    extras = condition_labels(task for task, found in sets.items() for _ in found)
    panels = []
    for task, found in sets.items():
        depths = sorted({arm.task.depth for arm in found})
        if len(depths) < 2:
            continue
        means = {(arm.subject, arm.task.depth): arm.error for arm in found}
        bars = {key: mean.interval() if mean.known else None for key, mean in means.items()}
        ends = [value for key, mean in means.items() for value in (mean.mean, *(bars[key] or ()))]
        plot = svg.Plot((depths[0], depths[-1]), (min(ends), max(ends)), "depth", "test error, %", log_x=True)
        text = []
        for subject, css, aside in ((PLAIN, "plain", 0.985), (_LSTM, "stepped", 1.015)):  # bars must not hide bars
            line = [(d, means[subject, d].mean) for d in depths if (subject, d) in means]
            plot.line([(d * aside, mean) for d, mean in line], css)
            for d, mean in line:
                plot.dot((d * aside, mean), css, bars[subject, d])
            text.append(f"{subject.label}: " + ", ".join(f"{mean:.2f} at depth {d}" for d, mean in line))
        heading = f"{data_name(task.data)}, {how(task, extras[task])}"
        drawing = plot.svg(f"Test error over depth, {heading}", "; ".join(text), x_ticks=depths)
        panels.append(Panel("", heading, drawing))
    caption = "Test error of the last epoch over depth, with 95% intervals of the mean. The depth axis is logarithmic."
    legend = (("plain", "plain"), ("stepped", "lstm"))
    return Figure("depth", "Error over depth", caption, panels, legend)


# -- inside the network: step sizes and stability ----------------------------------------------------------------------


def step_sizes(arms: Sequence[Arm], label: Label) -> Figure:
    """Step sizes over depth (down) and training (across), the first seed of each arm that learns them."""
    panels = []
    for arm in arms:
        seed, record = next(iter(arm.runs.items()))
        if not record.steps or arm.subject.kind == "fixed":
            continue
        columns = thinned(len(record.loss))
        rows, names, ends = [], [], []
        for (stage, found), last in zip(record.steps.items(), quantities.steps_by_stage(record), strict=True):
            rows += [[found[column][block] for column in columns] for block in range(len(last))]
            names += [stage] + [""] * (len(last) - 1)
            ends.append(f"step_sizes/{stage}: {last[0]:.2f} to {last[-1]:.2f}")
        heading = f"{arm.subject.label}, {label(arm.task)}, seed {seed}"
        text = "Final step sizes from the first to the last block: " + "; ".join(ends)
        epochs = ("1", str(len(record.loss)))
        drawing = svg.heat_map(rows, names, "epoch", epochs, f"Step sizes over training, {heading}", text)
        panels.append(Panel("", heading, drawing))
    caption = (
        "Each row is a block, first block on top, stages named at their first block; each column an epoch. The colour "
        "runs from empty (step size 0) to full (1); learned step sizes start near 0.5. Averaged over channels."
    )
    legend = (("heat0", "0"), ("heat50", "0.5"), ("heat100", "1"))
    return Figure("steps", "Step sizes over depth and training", caption, panels, legend)


def thinned(count: int) -> list[int]:
    """At most so many epochs, the first and the last among them."""
    return sorted({round(number * (count - 1) / (_COLUMNS - 1)) for number in range(_COLUMNS)})


def final_steps(arms: Sequence[Arm], label: Label) -> Figure:
    """Final step sizes over depth: mean over seeds with their range."""
    panels = []
    for arm in arms:
        profiles = [[dt for stage in quantities.steps_by_stage(r) for dt in stage] for r in arm.runs.values()]
        if len(profiles[0]) < 2 or arm.subject.kind == "fixed":
            continue
        plot = svg.Plot((1, len(profiles[0])), (0, 1), "block", "step size")
        text = draw(plot, [list(enumerate(profile, 1)) for profile in profiles], "stepped", "step size")
        heading = f"{arm.subject.label}, {label(arm.task)}"
        panels.append(Panel("", heading, plot.svg(f"Final step sizes, {heading}", text)))
    caption = "Final step sizes over all blocks, averaged over channels. Lines are means over seeds, shades the range."
    return Figure("final-steps", "Final step sizes", caption, panels, (("stepped", "step size"),))


def stability(arms: Sequence[Arm], label: Label) -> Figure:
    """The bound of Proposition 1 and measured growth, block by block, with the step sizes; a task has one axis."""
    panels, cut = [], ""
    for task, bundle in by_task(arms).items():
        runs = {arm.subject: [(seed, r.stability) for seed, r in arm.runs.items() if r.stability] for arm in bundle}
        drawn = {f"{subject.label}, seed {of[0][0]}": _lines(of[0][1]) for subject, of in runs.items() if of}
        values = [value for *lines, _ in drawn.values() for line in lines for value in line if value > 0]
        for heading, (bound, largest, sizes, logs) in drawn.items():
            plot = svg.Plot((1, len(bound)), (min(values), max(values)), "block", "factor", log_y=True)
            for line, css in ((bound, "plain"), (largest, "stepped"), (sizes, "quiet")):
                if line:
                    plot.line(list(enumerate(line, 1)), css)
            text = f"Bound {_in_words(logs[0])}, measured growth {_in_words(logs[1])}"
            title = f"Stability bound and measured growth, {label(task)}: {heading}"
            panels.append(Panel(label(task), heading, plot.svg(title, text)))
            if max(abs(log) for each in logs for log in each) > _FLOAT:
                cut = " A factor beyond 10^300 is drawn there."
    caption = (
        "Per block: the factor of Proposition 1 with the real operators, the largest measured growth of a small "
        "perturbation, and the mean step size. Norms are power iteration's, from below, until ten rounds add less "
        f"than 0.01 %; the measured growth can never exceed the bound with the exact ones.{cut}"
    )
    legend = (("plain", "bound"), ("stepped", "measured growth"), ("quiet", "step size"))
    return Figure("stability", "Bound and measured growth", caption, panels, legend)


def _lines(found: Stability) -> tuple[list[float], list[float], list[float], tuple[Sequence[float], Sequence[float]]]:
    """Bound, largest growth that any search found, and step size of every block, and the first two as logarithms.

    What no float holds is drawn at the edge of it.
    """
    logs = (found.log_bound, [max(of_block) for of_block in zip(*found.log_growth.values(), strict=True)])
    bound, largest = ([math.exp(min(max(log, -_FLOAT), _FLOAT)) for log in each] for each in logs)
    return bound, largest, list(found.step_sizes), logs


def _in_words(logs: Sequence[float]) -> str:
    """The smallest and the largest factor: ``0.97 to 1.84``, as powers of ten where they are large."""
    ends, large = (min(logs), max(logs)), math.log(1e6)
    return " to ".join(f"{math.exp(log):.2f}" if log < large else f"10^{log / math.log(10):.0f}" for log in ends)


def initial_value_problem(solutions: dict[str, Any]) -> Figure:
    """Figure 1: two fixed steps and the adaptive method on y' = -4y."""
    exact = [(number / 50, math.exp(-4 * number / 50)) for number in range(151)]  # to t = 3, where the others end
    panels = []
    for label, found in solutions.values():
        points = list(zip(found.times, found.values, strict=True))
        ends = [value for _, value in points + exact]
        plot = svg.Plot((0, max(found.times)), (min(ends), max(ends)), "t", "y")
        plot.line(exact, "quiet")
        plot.line(points, "stepped")
        for point in points if len(points) < 40 else ():
            plot.dot(point, "stepped")
        text = f"{found.steps} steps, largest error {found.error:.2g}"
        panels.append(Panel("", f"{label}: {text}", plot.svg(f"y' = -4y, {label}", text)))
    caption = "y' = -4y, y(0) = 1. A large fixed step is unstable, a small one needs many steps, the adaptive one few."
    legend = (("quiet", "exact"), ("stepped", "numerical"))
    return Figure("fig1", "Figure 1: an initial value problem", caption, panels, legend)
