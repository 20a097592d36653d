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

INPUT = (3, 224, 224)


def measure(model: str, controllers: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Counts of a network with each controller by ``model controller``; the controller ``plain`` means none.

    The networks are the paper's: bottlenecks stride in their first 1x1 convolution.
    """
    base = create_model(model, original_stride=True)
    parameters, gflops = count_parameters(base), multiply_adds(base, INPUT) / 1e9
    plain = {"gflops_train": gflops, "gflops_inference": gflops}
    plain |= {"parameters_train": parameters, "parameters_inference": parameters}
    return {f"{model} {one}": plain if one == "plain" else _stepped(base, one, plain) for one in controllers}


def _stepped(base: nn.Module, controller: str, plain: dict[str, Any]) -> dict[str, Any]:
    found = find_steps(attach(base, controller))
    kept = sum(steps.numel() for steps in step_sizes(base).values())
    named = list(found.controllers.named_parameters())
    stages = found.stepping.stages
    layers, channels = [len(stage.sites) for stage in stages], [stage.channels for stage in stages]
    # What Table 1 gives for this network; its k1 k2 is the length of the descriptor over the channels.
    per_channel, reduction = stages[0].descriptor / stages[0].channels, stages[0].reduction
    formulas = {
        "independent": lambda: equations.independent_complexity(layers, channels),
        "two_fc": lambda: equations.two_fc_complexity(layers, channels, per_channel, reduction),
        "lstm": lambda: equations.lstm_complexity(channels, per_channel, reduction),
    }
    counts = plain | {
        "parameters_train": count_parameters(base),
        "parameters_inference": plain["parameters_inference"] + kept,
        "step_sizes": kept,
        "gflops_train": plain["gflops_train"] + controller_multiply_adds(found) / 1e9,
        "gflops_matrices": sum(part.multiply_adds() for _, part in found.controlled()) / 1e9,
        "controller_weights": sum(p.numel() for name, p in named if "bias" not in name),
        "controller_biases": sum(p.numel() for name, p in named if "bias" in name),
        "formula_train": formulas.get(controller, formulas["lstm"])(),
        "formula_inference": formulas["independent"](),
    }
    detach(base)  # for the next controller
    return counts


def structure(model: str) -> list[dict[str, Any]]:
    """Appendix B: the shapes of every stage of a network with the LSTM controller."""
    net = attach(create_model(model, original_stride=True), "lstm")
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
