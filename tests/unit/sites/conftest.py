"""What all tests of sites ask of a network that was attached to."""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

import timestepper


def outputs(net: nn.Module, example) -> list[torch.Tensor]:
    """All floating tensors that come out in eval mode, always with the same dropout."""
    torch.manual_seed(0)
    with torch.no_grad():
        found = net(**example) if isinstance(example, dict) else net(*example)
    return [t for t in tree_flatten(found)[0] if isinstance(t, torch.Tensor) and t.is_floating_point()]


@pytest.fixture
def attach_and_fold():
    """Attach, make a training step, fold: the folded network computes what the attached one does, and another thing
    than the base; detach gives the base back."""

    def check(net: nn.Module, example, controller: str = "independent", **options) -> nn.Module:
        state, hooks = copy.deepcopy(net.state_dict()), [len(m._forward_hooks) for m in net.modules()]
        kinds = [type(module) for module in net.modules()]
        attached = timestepper.attach(net, controller, example=example, **options)
        assert attached is net
        example = example if isinstance(example, dict | tuple) else (example,)
        net.train()
        found = net(**example) if isinstance(example, dict) else net(*example)
        sum((t**2).mean() for t in tree_flatten(found)[0] if isinstance(t, torch.Tensor) and t.requires_grad).backward()
        for name, parameter in net.controllers.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
        net.eval()
        folded = timestepper.fold(net)
        for ours, theirs in zip(outputs(net, example), outputs(folded, example), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert [type(module) for module in folded.modules()] == kinds
        timestepper.detach(net)
        for key, value in net.state_dict().items():
            if "running" not in key and "num_batches" not in key:
                assert torch.equal(value, state[key]), key
        assert [len(m._forward_hooks) for m in net.modules()] == hooks
        assert [type(module) for module in net.modules()] == kinds
        base = copy.deepcopy(net).eval()
        moved = [not torch.equal(a, b) for a, b in zip(outputs(folded, example), outputs(base, example), strict=True)]
        assert any(moved)
        return net

    return check
