"""Stochastic gradient descent with Nesterov momentum, or AdamW, in groups, ready for a CUDA graph."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("sgd", "adamw")


def build(
    groups: Iterable[dict[str, Any]],
    *,
    kind: str = "sgd",
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = True,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """``sgd`` or ``adamw``, whose first beta is the momentum, of torch's groups that hold anything to train.

    The learning rate is a tensor on the parameters' device and all that is remembered starts as zeros (which gives the
    same first update), so that every step runs the same kernels on the same memory and the state never changes its
    shape. Fused kernels leave everything untouched where ``found_inf`` is 1, without asking the host.
    """
    described: list[dict[str, Any]] = []
    for group in groups:
        parameters = [parameter for parameter in group["params"] if parameter.requires_grad]
        if parameters:
            described.append(group | {"params": parameters, "lr": torch.tensor(lr, device=parameters[0].device)})
    options: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": True}
    optimiser: torch.optim.Optimizer
    if kind == "adamw":
        on_gpu = described[0]["lr"].is_cuda  # torch asks for ``capturable`` there, and refuses it elsewhere
        optimiser = torch.optim.AdamW(described, betas=(momentum, beta2), capturable=on_gpu, **options)
    else:
        optimiser = torch.optim.SGD(described, momentum=momentum, nesterov=nesterov and momentum > 0, **options)
    for parameter in parameters_of(optimiser):
        if kind == "adamw":
            optimiser.state[parameter] |= {
                "step": torch.zeros((), device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        elif momentum > 0:
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimiser


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give the next update its learning rate."""
    for group in optimiser.param_groups:
        group["lr"].fill_(rate)


def parameters_of(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    """All parameters, in the optimiser's order."""
    return [parameter for group in optimiser.param_groups for parameter in group["params"]]


def momentum_of(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    """What it remembers of past gradients, in its order: all its state, as rate and options follow from the recipe."""
    return [tensor for p in parameters_of(optimiser) for tensor in optimiser.state.get(p, {}).values()]
