"""The end of a run: final errors, the folded network beside the attached one, exported weights, summary."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timestepper.api import evolution_time, fold, is_attached, step_sizes
from timestepper.engine.distributed import Group
from timestepper.engine.evaluation import Evaluation
from timestepper.engine.metrics import read_metrics
from timestepper.engine.rundir import METRICS
from timestepper.engine.runtime import Runtime
from timestepper.inspection import descriptor_influence
from timestepper.runs import build
from timestepper.runs.load import Trained

WEIGHTS = "weights.safetensors"


def evaluate(trained: Trained, runtime: Runtime, poll: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Test figures of the network, and of its folded twin where it has controllers; they must be equal."""
    group = Group(device=runtime.device)
    batches = build.test_loader(trained.recipe, trained.data.test, runtime, group)
    model = trained.model.to(runtime.device)
    figures: dict[str, Any] = {"test": Evaluation(model, runtime, group).run(batches, poll)}
    if is_attached(model):
        plain = fold(model)
        figures["folded"] = Evaluation(plain, runtime, group).run(batches, poll)
        figures["fold_difference"] = _difference(model, plain, next(iter(batches.epoch(0)))[0])
        figures["evolution_time"] = evolution_time(model)
        figures["descriptor_influence"] = descriptor_influence(model)
    return figures


@torch.no_grad()
def _difference(attached: nn.Module, plain: nn.Module, images: torch.Tensor) -> float:
    """Largest difference of logits on one batch."""
    attached.eval()
    plain.eval()
    return float((attached(images) - plain(images)).abs().max())


def final_step_sizes(model: nn.Module) -> dict[str, list[list[float]]]:
    """Step sizes by stage, (depth, channels), to five digits; empty for a plain network."""
    if not is_attached(model):
        return {}
    return {name: [[float(f"{v:.5g}") for v in row] for row in dt.tolist()] for name, dt in step_sizes(model).items()}


def epochs_of(run: Path) -> list[dict[str, Any]]:
    """The epoch lines of a run's metrics."""
    return [line for line in read_metrics(run / METRICS) if line["kind"] == "epoch"]


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """What a person reads at the end; ``train`` is among the figures of a finished run alone."""
    lines = []
    finished = "train" in figures
    if finished:
        lines.append(f"train error   {figures['train']['error']:.2%} (running, last epoch)")
    when = " (last epoch)" if finished else ""
    lines.append(f"test error    {figures['test']['error']:.2%}{when}, loss {figures['test']['loss']:.4f}")
    if "folded" in figures:
        equal = figures["folded"]["error"] == figures["test"]["error"]
        lines.append(
            f"folded error  {figures['folded']['error']:.2%} ({'equal' if equal else 'NOT EQUAL'}; largest difference "
            f"of logits {figures['fold_difference']:.1e})"
        )
        times = figures["evolution_time"]
        parts = ", ".join(f"{name} {time:.3f}" for name, time in times.items())
        lines.append(f"evolution     T = {sum(times.values()):.3f} ({parts})")
    return lines
