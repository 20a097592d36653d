"""The picture of one network over its depth."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from timestepper.errors import StabilityError, first_line

CURVES = (
    ("log_without_steps", "bound without step sizes", "k:"),
    ("log", "bound", "k-"),
    ("growth_power", "measured, worst direction", "o-"),
    ("growth_adversarial", "measured, adversarial", "s-"),
    ("growth_random", "measured, random", ".-"),
)


def plot_depth(path: str | Path, found: dict[str, Any], title: str = "") -> None:
    """Bound and measured growth of every block, and the step sizes below; ``found`` is what ``analyse`` gave."""
    from matplotlib.figure import Figure

    blocks, depth = found["blocks"], np.arange(1, len(found["blocks"]) + 1)
    stepped = "step_size" in blocks[0]
    figure = Figure(figsize=(8, 4 + 2 * stepped), layout="constrained")
    panels = figure.subplots(1 + stepped, sharex=True, squeeze=False)[:, 0]
    for name, label, style in CURVES:
        if name in blocks[0]:
            values = np.array([block[name] for block in blocks])
            panels[0].plot(depth, np.exp(values) if "log" in name else values, style, markersize=3, label=label)
    panels[0].set(yscale="log", ylabel="growth in one block", title=title)
    panels[0].axhline(1, color="grey", linewidth=0.5)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", fontsize="small", ncols=3)
    if stepped:
        least, mean, largest = np.array([[b["step_size"][n] for b in blocks] for n in ("least", "mean", "largest")])
        panels[1].fill_between(depth, least, largest, alpha=0.3, step="mid", label="over channels")
        panels[1].step(depth, mean, where="mid", label="mean")
        panels[1].set(ylabel="step size", ylim=(0, 1.05 * max(1.0, largest.max())))
        panels[1].legend(fontsize="small")
    ends = [place for place, (one, other) in enumerate(pairwise(blocks), 1) if one["stage"] != other["stage"]]
    for axes, place in product(panels, ends):
        axes.axvline(place + 0.5, color="grey", linewidth=0.5, linestyle="--")
    panels[-1].set_xlabel("block")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    path = Path(path)
    if path.suffix.lower().removeprefix(".") not in figure.canvas.get_supported_filetypes():
        raise StabilityError(f"{path}: no picture has such a name; give a .png, .svg or .pdf file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise StabilityError(f"{path} cannot be written: {first_line(error)}; name a file elsewhere") from None
