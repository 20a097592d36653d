"""The figures of the page: each is a set of small panels with one legend and one caption."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from timestepper.report import quantities, svg
from timestepper.report.compare import by_task, differences, plain_of, same_start_of
from timestepper.report.groups import Group, Task, condition_labels
from timestepper.report.names import data_name, subject_name
from timestepper.report.records import Record
from timestepper.report.statistics import Estimate, mean_of, signed

Curve = list[tuple[float, float]]
_FAR = 4  # times the middle of all bars


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
    panels: tuple[Panel, ...]
    legend: tuple[tuple[str, str], ...] = (("plain", "plain"), ("stepped", "the network that the panel names"))


def comparison(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """Differences to the plain network with their intervals, a panel per task and base, all on the same axis."""
    found: list[tuple[str, list[tuple[Group, Estimate]]]] = []
    for task, bundle in sorted(by_task(groups).items(), key=lambda item: -len(item[1])):
        bases = {"plain": plain_of(bundle), "plain that starts at half steps": same_start_of(bundle)}
        for name, base in bases.items():
            known = [pair for pair in differences(bundle, base) if pair[1].known] if base else []
            if known:
                found.append((f"Minus {name}: {label(task)}", known))
    if not found:
        return None
    intervals = [apart for _, pairs in found for _, apart in pairs]
    span = _axis([(a.low, a.high) for a in intervals if a.low is not None and a.high is not None])
    panels = []
    for heading, pairs in found:
        rows = [
            (f"{subject_name(group.subject)}: {signed(apart.mean)} {apart.bounds()}", apart.mean, apart.low, apart.high)
            for group, apart in pairs
        ]
        said = "; ".join(row[0] for row in rows)
        drawing = svg.forest(rows, span, "percentage points; left of 0 is better", f"Test error. {heading}", said)
        panels.append(Panel("", heading, drawing))
    caption = (
        "Test error of the last epoch minus that of a plain network. Points are means over seeds, bars 95% intervals "
        "of the difference (Welch). An arrow ends a bar that goes on beyond the axis; a row without a point has its "
        "mean there. A controller "
        "starts with half steps, so the plain network whose blocks start at half their size is the fair one to beat."
    )
    return Figure("comparison", "Who is better than the plain network?", caption, tuple(panels), ())


def _axis(bars: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """From end to end of all bars and zero, but for bars far beyond the others, which would leave these no room."""
    reach = [max(abs(low), abs(high)) for low, high in bars]
    most = _FAR * median(reach)
    ends = [end for bar, far in zip(bars, reach, strict=True) if far <= most for end in bar]
    return min(0.0, *ends), max(0.0, *ends)


def learning_curves(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """Test error and training loss over epochs: plain against one other subject in each panel."""
    caption = (
        "Lines are means over seeds, shades run from the best to the worst seed. The vertical axes are logarithmic. "
        "The training loss is that of a whole epoch, with augmentation; tables report the test error of the last epoch."
    )
    measures = ((quantities.error_curve, "test error, %"), (quantities.loss_curve, "training loss"))
    panels = _duels(groups, label, measures, "epoch", log_y=True)
    return Figure("curves", "Learning curves", caption, panels) if panels else None


def noise(groups: Sequence[Group], label: Callable[[Task], str]) -> Figure | None:
    """Test error and loss over the standard deviation of the input noise."""
    measures = (
        (lambda record: quantities.noise_curve(record, "error"), "test error, %"),
        (lambda record: quantities.noise_curve(record, "loss"), "test loss"),
    )
    panels = _duels(groups, label, measures, "standard deviation of noise")
    caption = (
        "Gaussian noise added to the normalised test images; every point averages several draws. Lines are means over "
        "seeds, shades run from the best to the worst seed."
    )
    return Figure("noise", "Accuracy and loss under noise", caption, panels) if panels else None


def _duels(
    groups: Sequence[Group],
    label: Callable[[Task], str],
    measures: Sequence[tuple[Callable[[Record], Curve], str]],
    x_label: str,
    log_y: bool = False,
) -> tuple[Panel, ...]:
    """One panel per group that is not plain, with the plain one beside it, all of a task on the same axes.

    All measures of a task follow each other before the next task comes.
    """
    panels = []
    tasks = by_task(groups).items()
    for (task, bundle), (curve, y_label) in itertools.product(tasks, measures):
        curves = {group.subject: [c for c in map(curve, group.runs.values()) if len(c) > 1] for group in bundle}
        curves = {subject: found for subject, found in curves.items() if found}
        points = [point for found in curves.values() for line in found for point in line]
        if not points:
            continue
        x = (min(x for x, _ in points), max(x for x, _ in points))
        y = _heights([y for _, y in points], log_y)
        others = [subject for subject in curves if subject != "plain"] or [""]
        for subject in others:
            plot = svg.Plot(x, y, x_label, y_label, log_y=log_y)
            text = []
            for name, css in (("plain", "plain"), (subject, "stepped")):
                if name in curves:
                    text.append(draw(plot, curves[name], css, subject_name(name)))
            heading = subject_name(subject) if subject else "plain"
            title = f"{y_label} over {x_label}, {label(task)}: {heading}"
            shown = f"{heading}: {y_label.partition(',')[0]}"
            group = f"{label(task)}: {y_label.partition(',')[0]}" if len(others) > 1 else label(task)
            panels.append(Panel(group, shown, plot.svg(title, "; ".join(text))))
    return tuple(panels)


def _heights(values: Sequence[float], log: bool) -> tuple[float, float]:
    """The ends of the vertical axis. Zeros lie below any logarithmic one, so curves of nothing else get 1 to 1."""
    low = min((value for value in values if value > 0), default=1.0) if log else min(0.0, *values)
    return low, max(low, *values)


def draw(plot: svg.Plot, curves: list[Curve], css: str, name: str) -> str:
    """A mean line in its range; says in words where it starts and ends, or that the seeds share no point to draw."""
    shared = [x for x, _ in curves[0] if all(any(other == x for other, _ in curve) for curve in curves)]
    if not shared:
        return f"{name}: no point that all seeds have"
    values = {x: [dict(curve)[x] for curve in curves] for x in shared}
    mean = [(x, math.fsum(v) / len(v)) for x, v in values.items()]
    if len(curves) > 1:
        plot.band([(x, min(v)) for x, v in values.items()], [(x, max(v)) for x, v in values.items()], css)
    plot.line(mean, css)
    return f"{name} from {mean[0][1]:.3g} at {mean[0][0]:g} to {mean[-1][1]:.3g} at {mean[-1][0]:g}"


def depth(groups: Sequence[Group], how: Callable[[Task, str], str]) -> Figure | None:
    """Test error over depth, plain and with the paper's controller; only where two depths or more were run.

    A panel holds the runs whose conditions agree in everything but the network: a depth that was also run with
    another precision must not lend its point to the others.
    """
    sets: dict[Task, list[Group]] = {}
    for group in groups:
        if group.task.model.startswith("cifar/resnet") and group.subject in ("plain", "lstm"):
            sets.setdefault(replace(group.task, model=""), []).append(group)
    extras = condition_labels(task for task, found in sets.items() for _ in found)
    panels = []
    for task, found in sets.items():
        data, conditions = task.data, how(task, extras[task])
        depths = sorted({group.task.depth or 0 for group in found})
        if len(depths) < 2:
            continue
        means = {(g.subject, g.task.depth or 0): mean_of(g.values(quantities.test_error).values()) for g in found}
        ends = [value for i in means.values() for value in (i.mean, i.low, i.high) if value is not None]
        span = (float(depths[0]), float(depths[-1]))
        plot = svg.Plot(span, (min(ends), max(ends)), "depth", "test error, %", log_x=True)
        text = []
        for subject, css, aside in (("plain", "plain", 0.985), ("lstm", "stepped", 1.015)):  # bars must not hide bars
            line = [(d, means[subject, d]) for d in depths if (subject, d) in means]
            plot.line([(d * aside, i.mean) for d, i in line], css)
            for d, i in line:
                plot.dot((d * aside, i.mean), css, i.low, i.high)
            text.append(f"{subject}: " + ", ".join(f"{i.mean:.2f} at depth {d}" for d, i in line))
        title = f"Test error over depth, {data_name(data)}, {conditions}"
        panels.append(Panel("", f"{data_name(data)}, {conditions}", plot.svg(title, "; ".join(text), x_ticks=depths)))
    caption = "Test error of the last epoch over depth, with 95% intervals of the mean. The depth axis is logarithmic."
    legend = (("plain", "plain"), ("stepped", "lstm"))
    return Figure("depth", "Error over depth", caption, tuple(panels), legend) if panels else None
