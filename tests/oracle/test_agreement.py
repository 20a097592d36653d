"""timestepper and the literal paper are one function: same outputs, same gradient of every parameter, in float64.

timestepper never multiplies a feature map: it runs the plain network with other parameters. The literal implementation
multiplies feature maps and runs its controller block by block. Every controller kind meets every family here.
"""

import copy

import literal
import pytest
import torch
from families import FAMILIES, KINDS
from torch import Tensor, nn

import timestepper

TOLERANCE = 1e-9  # of the largest entry of each tensor


def build(family: str) -> nn.Module:
    """A network in which everything matters: no zero norm, no norm that undoes a scale, statistics unlike 0 and 1."""
    model = FAMILIES[family]().double()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.1
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def spread(net: nn.Module) -> None:
    """Controller weights that give step sizes all over (0, 1) instead of 0.5 everywhere."""
    for name, parameter in net.controllers.named_parameters():
        nn.init.normal_(parameter, std=20 * parameter.shape[-1] ** -0.5 if "weight" in name else 1)


def literal_twin(net: nn.Module, model: nn.Module, kind: str) -> nn.Module:
    name, _, value = kind.rstrip(")").partition("(")
    twin = literal.make_literal(model, name, **({"value": float(value)} if value else {}))
    twin.load_state_dict(translated(net.state_dict()), strict=True)
    return twin


def translated(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """timestepper's parameters (or their gradients) under the literal names: gates apart, sites apart."""
    result = {}
    for key, tensor in tensors.items():
        if not key.startswith("controllers."):
            result[key] = tensor
            continue
        _, stage, name = key.split(".")
        result |= {f"{stage}.controller.{new}": part for new, part in controller_parts(name, tensor).items()}
    return result | gates(tensors)


def controller_parts(name: str, tensor: Tensor) -> dict[str, Tensor]:
    if name == "logit":
        return {f"logit.{d}": row for d, row in enumerate(tensor)}
    if name.startswith("gate_"):
        return {}  # see gates(): the paper's W multiplies h and x at once
    side, kind = name.split("_")
    layer = {"input": "W_in", "output": "W_out"}[side]
    shared_dimensions = {"weight": 2, "bias": 1}[kind]
    if tensor.dim() == shared_dimensions:
        return {f"{layer}.{kind}": tensor}
    return {f"{layer}.{d}.{kind}": row if kind == "weight" else row[0] for d, row in enumerate(tensor)}


def gates(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    result = {}
    for stage in [key.split(".")[1] for key in tensors if key.endswith(".gate_bias")]:
        weight_h, weight_x, bias = (tensors[f"controllers.{stage}.gate_{x}"] for x in ("weight_h", "weight_x", "bias"))
        both = torch.cat([weight_h, weight_x], 1)
        for gate, weight, offset in zip("ifgo", both.chunk(4), bias.chunk(4), strict=True):
            result |= {f"{stage}.controller.W_{gate}.weight": weight, f"{stage}.controller.W_{gate}.bias": offset}
    return result


def run(network: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits, and the gradient of a loss to which every logit contributes differently."""
    logits = network(x)
    loss = (
        logits * torch.linspace(-1, 1, logits.numel(), dtype=x.dtype).view_as(logits)
    ).sum() + logits.square().mean()
    loss.backward()
    return logits.detach(), {name: parameter.grad for name, parameter in network.named_parameters()}


def disagreements(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    assert ours.keys() == theirs.keys()
    found = {}
    for name, wanted in theirs.items():
        distance, size = (ours[name] - wanted).abs().max().item(), wanted.abs().max().item()
        if not distance <= TOLERANCE * size:
            found[name] = distance / size if size else distance
    return found


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_and_all_gradients_agree(family, kind, training):
    torch.manual_seed(0)
    model = build(family)
    copied, plain = copy.deepcopy(model), copy.deepcopy(model).train(training)
    net = timestepper.attach(model, controller=kind)
    spread(net)
    twin = literal_twin(net, copied, kind)
    x = torch.randn(3, 3, 64 if family.split()[0] in ("timm", "torchvision") else 16, 64, dtype=torch.float64)

    logits, gradients = run(net.train(training), x)
    expected, expected_gradients = run(twin.train(training), x)

    assert not disagreements({"logits": logits}, {"logits": expected})
    assert not disagreements(translated(gradients), expected_gradients)
    assert not disagreements(
        {name: buffer.double() for name, buffer in net.named_buffers()},
        {name: buffer.double() for name, buffer in twin.named_buffers()},
    )
    # The comparison means something: the steps differ from one another, and the network from one without them.
    for stage, dt in timestepper.step_sizes(net).items():
        torch.testing.assert_close(dt, getattr(twin, stage).step_sizes().detach(), rtol=1e-12, atol=0)
        assert dt.std() > 0.1 or kind == "fixed(0.3)"
    assert (plain(x) - expected).abs().max() > 1e-2 * expected.abs().max()
