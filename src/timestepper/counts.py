"""Parameters, multiply-adds and layer shapes of the paper's networks, counted on the real modules."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from timestepper import equations
from timestepper.api import attach, detach, find_steps, step_sizes
from timestepper.inspection import controller_multiply_adds, count_parameters, multiply_adds
from timestepper.sites import create_model
from timestepper.steps import Steps

INPUT = (3, 224, 224)


def measure(networks: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Counts of (model, controller) pairs by ``model controller``; the controller ``plain`` means none.

    The networks are the paper's: bottlenecks stride in their first 1x1 convolution.
    """
    found: dict[str, dict[str, Any]] = {}
    bases: dict[str, tuple[nn.Module, int]] = {}
    for model, controller in sorted(set(networks)):
        if model not in bases:
            built = create_model(model, original_stride=True)
            bases[model] = built, multiply_adds(built, INPUT)
        base, base_multiply_adds = bases[model]
        found[f"{model} {controller}"] = _count(base, base_multiply_adds, controller)
    return found


def _count(base: nn.Module, base_multiply_adds: int, controller: str) -> dict[str, Any]:
    parameters, gflops = count_parameters(base), base_multiply_adds / 1e9
    if controller == "plain":
        return {
            "parameters_train": parameters,
            "parameters_inference": parameters,
            "gflops_train": gflops,
            "gflops_inference": gflops,
        }
    found = find_steps(attach(base, controller))
    kept = sum(steps.numel() for steps in step_sizes(base).values())
    named = list(found.controllers.named_parameters())
    counts = {
        "parameters_train": count_parameters(base),
        "parameters_inference": parameters + kept,
        "step_sizes": kept,
        "gflops_train": gflops + controller_multiply_adds(found) / 1e9,
        "gflops_inference": gflops,
        "gflops_matrices": sum(part.multiply_adds() for _, part in found.controlled()) / 1e9,
        "controller_weights": sum(p.numel() for name, p in named if "bias" not in name),
        "controller_biases": sum(p.numel() for name, p in named if "bias" in name),
        "formula_train": _formula(found, controller),
        "formula_inference": equations.independent_complexity(*_layers_and_channels(found)),
    }
    detach(base)  # for the next controller
    return counts


def _formula(found: Steps, controller: str) -> float:
    """What Table 1 gives for this network; its k1 k2 is the length of the descriptor over the channels."""
    layers, channels = _layers_and_channels(found)
    first = found.stepping.stages[0]
    per_channel, reduction = first.descriptor / first.channels, first.reduction
    if controller == "independent":
        return equations.independent_complexity(layers, channels)
    if controller == "two_fc":
        return equations.two_fc_complexity(layers, channels, per_channel, reduction)
    return equations.lstm_complexity(channels, per_channel, reduction)


def _layers_and_channels(found: Steps) -> tuple[list[int], list[int]]:
    stages = found.stepping.stages
    return [len(stage.sites) for stage in stages], [stage.channels for stage in stages]


def structures(models: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Appendix B: the shapes of every stage of each model with the LSTM controller."""
    return {model: _stages(attach(create_model(model, original_stride=True), "lstm")) for model in sorted(set(models))}


def _stages(net: nn.Module) -> list[dict[str, Any]]:
    found = find_steps(net)
    sizes = _output_sizes(net, [stage.sites[0].path for stage in found.stepping.stages])
    stages = []
    for stage, controller in found.controlled():
        block = net.get_submodule(stage.sites[-1].path)
        convolutions = [part for _, part in block.named_modules() if isinstance(part, nn.Conv2d)]
        weights = {name: list(parameter.shape) for name, parameter in controller.named_parameters()}
        hidden = weights["gate_weight_h"][1]
        stages.append(
            {
                "output_size": sizes[stage.sites[0].path],
                "blocks": len(stage.sites),
                "convolutions": [[conv.kernel_size[0], conv.out_channels] for conv in convolutions],
                "input": weights["input_weight"][::-1],
                "gates": [weights["gate_weight_x"][1] + hidden, weights["gate_weight_h"][0] // 4],
                "output": weights["output_weight"][::-1],
            }
        )
    return stages


def _output_sizes(model: nn.Module, blocks: list[str]) -> dict[str, int]:
    """Edge of the feature map behind each named block, from a pass on shapes alone."""
    shadow = copy.deepcopy(model).to("meta").eval()
    sizes: dict[str, int] = {}

    def note(path: str):
        return lambda module, inputs, output: sizes.__setitem__(path, output.shape[-1])

    for path in blocks:
        shadow.get_submodule(path).register_forward_hook(note(path))
    with torch.no_grad():
        shadow(torch.empty(1, *INPUT, device="meta"))
    return sizes
