"""The two pictures: the paper's Figure 1, and one network over its depth. matplotlib is imported when one is drawn."""

from pathlib import Path
from typing import Any

import numpy as np

from timestepper.errors import StabilityError, first_line
from timestepper.stability.ode import Solution, decayed, figure_1


def plot_figure_1(path: str | Path, solutions: dict[str, Solution] | None = None) -> None:
    """Forward Euler with a large and a small step and the adaptive method on y' = -4 y, beside the exact solution."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    solutions = solutions or figure_1()
    end = max(solution.times[-1] for solution in solutions.values())
    times = np.linspace(0, end, 400)
    axes.plot(times, [decayed(time) for time in times], color="black", label="exact, exp(-4t)")
    for (name, solution), marker in zip(solutions.items(), ("s--", ".-", "o-"), strict=False):
        axes.plot(
            solution.times,
            solution.values,
            marker,
            markersize=4,
            linewidth=0.8,
            label=f"{name}: {solution.steps} steps, error {solution.error(decayed):.2g}",
        )
    axes.set(xlabel="t", ylabel="y", title="y' = -4 y, y(0) = 1")
    figure.legend(loc="outside lower center", fontsize="small", ncols=2)  # not over the points
    _save(figure, path)


def plot_depth(path: str | Path, found: dict[str, Any], title: str = "") -> None:
    """Bound and measured growth of every block, and the step sizes below; ``found`` is what ``analyse`` gave."""
    pyplot = _pyplot()
    blocks = found["blocks"]
    stepped = "step_size" in blocks[0]
    figure, panels = pyplot.subplots(
        1 + stepped, figsize=(8, 4 + 2 * stepped), sharex=True, squeeze=False, layout="constrained"
    )
    upper = panels[0, 0]
    depth = np.arange(1, len(blocks) + 1)
    for name, label, style in (
        ("log_without_steps", "bound without step sizes", "k:"),
        ("log", "bound", "k-"),
        ("growth_power", "measured, worst direction", "o-"),
        ("growth_adversarial", "measured, adversarial", "s-"),
        ("growth_random", "measured, random", ".-"),
    ):
        if name in blocks[0]:
            values = np.array([block[name] for block in blocks])
            upper.plot(depth, np.exp(values) if name.startswith("log") else values, style, markersize=3, label=label)
    upper.set(yscale="log", ylabel="growth in one block", title=title)
    upper.axhline(1, color="grey", linewidth=0.5)
    figure.legend(*upper.get_legend_handles_labels(), loc="outside upper center", fontsize="small", ncols=3)
    if stepped:
        lower = panels[1, 0]
        least, mean, largest = (
            np.array([block["step_size"][name] for block in blocks]) for name in ("least", "mean", "largest")
        )
        lower.fill_between(depth, least, largest, alpha=0.3, step="mid", label="over channels")
        lower.step(depth, mean, where="mid", label="mean")
        lower.set(ylabel="step size", ylim=(0, 1.05 * max(1.0, largest.max())))
        lower.legend(fontsize="small")
    for axes in panels[:, 0]:
        for place in range(1, len(blocks)):
            if blocks[place]["stage"] != blocks[place - 1]["stage"]:
                axes.axvline(place + 0.5, color="grey", linewidth=0.5, linestyle="--")
    panels[-1, 0].set_xlabel("block")
    panels[-1, 0].xaxis.get_major_locator().set_params(integer=True)
    _save(figure, path)


def _save(figure: Any, path: str | Path) -> None:
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise StabilityError(f"the plot cannot be written ({reason}); give a .png, .svg or .pdf file") from None
    finally:
        _pyplot().close(figure)


def _pyplot():
    import matplotlib

    matplotlib.use("Agg", force=False)
    from matplotlib import pyplot

    return pyplot
