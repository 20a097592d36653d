from functools import partial

import pytest
import torch
from torch import nn

from timestepper.engine import optimiser


def parameters():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4))]


def give_gradients(tensors, step):
    source = torch.Generator().manual_seed(step)
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape, generator=source)


@pytest.mark.parametrize(
    ("kind", "theirs_is"),
    [
        ("sgd", partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
        ("adamw", partial(torch.optim.AdamW, betas=(0.9, 0.95))),
    ],
)
def test_equals_torch_step_by_step(kind, theirs_is):
    ours, theirs = parameters(), parameters()
    built = optimiser.build([{"params": ours}], kind=kind, lr=0.1, beta2=0.95, weight_decay=1e-2)
    reference = theirs_is(theirs, lr=0.1, weight_decay=1e-2)
    for step, rate in enumerate([0.1, 0.1, 0.01, 0.001]):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        optimiser.set_rate(built, rate)
        reference.param_groups[0]["lr"] = rate
        built.step()
        reference.step()
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_groups_have_their_own_decay():
    first, second = parameters()
    groups = [{"params": [first]}, {"params": [second], "weight_decay": 0.5}]
    built = optimiser.build(groups, lr=0.1, momentum=0.0, weight_decay=0.0)
    before = second.detach().clone()
    first.grad, second.grad = torch.zeros_like(first), torch.zeros_like(second)
    kept = first.detach().clone()
    built.step()
    torch.testing.assert_close(second.detach(), before * (1 - 0.1 * 0.5))
    assert torch.equal(first.detach(), kept)


def test_empty_groups_are_left_out_and_frozen_parameters_too():
    first, second = parameters()
    second.requires_grad_(False)
    built = optimiser.build([{"name": "a", "params": [first, second]}, {"name": "none", "params": []}], lr=0.1)
    assert [group["name"] for group in built.param_groups] == ["a"]
    assert optimiser.parameters_of(built) == [first]


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_found_inf_keeps_weights_and_all_that_is_remembered(kind):
    tensors = parameters()
    built = optimiser.build([{"params": tensors}], kind=kind, lr=0.1)
    built.found_inf, built.grad_scale = torch.ones(()), None
    give_gradients(tensors, 0)
    before = [t.detach().clone() for t in tensors]
    built.step()
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))
    assert all(not m.any() for m in optimiser.momentum_of(built))


def test_no_momentum_means_no_state():
    built = optimiser.build([{"params": parameters()}], lr=0.1, momentum=0.0)
    assert optimiser.momentum_of(built) == []


@pytest.mark.parametrize("rate", [0.5, 1e-5])
def test_rate_is_a_tensor_that_is_filled_in_place(rate):
    built = optimiser.build([{"params": parameters()}], lr=0.1)
    tensor = built.param_groups[0]["lr"]
    optimiser.set_rate(built, rate)
    assert built.param_groups[0]["lr"] is tensor
    assert float(tensor) == pytest.approx(rate)
