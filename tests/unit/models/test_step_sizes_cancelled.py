"""Why Table 5 cannot work as described: in DenseNet and CliqueNet batch norm cancels the step sizes, also in training.

Every layer that reads a stepped feature begins with batch norm, and so does the classifier. Batch norm divides each
channel by its own deviation, so that a factor per channel has gone before anything is computed from it.
"""

import pytest
import torch
from torch.nn import functional as F

from timestepper import attach
from timestepper.models import CifarResNet, CliqueNet, DenseNet

NETWORKS = {"densenet40": lambda: DenseNet(40, 12), "cliquenet": lambda: CliqueNet(36, 12)}


def stepped(name, controller, build=NETWORKS):
    torch.manual_seed(0)
    return attach(build[name](), controller).train()


def logits(net):
    return net(torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(1)))


def change(name, build=NETWORKS):
    """Of the logits between step size 0.5 and 1, against their own size."""
    with torch.no_grad():
        half, whole = (logits(stepped(name, f"fixed({value})", build)) for value in (0.5, 1.0))
    return float((half - whole).abs().max() / whole.abs().max())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_logits_hardly_depend_on_the_step_sizes(name):
    assert change(name) < 1e-4
    assert change("resnet", {"resnet": lambda: CifarResNet(20)}) > 0.1  # where no norm follows, they do


@pytest.mark.parametrize("name", NETWORKS)
def test_step_sizes_get_no_gradient_to_learn_from(name):
    net = stepped(name, "independent")
    F.cross_entropy(logits(net), torch.arange(16) % 10).backward()
    steps = {key for key, _ in net.named_parameters() if "controllers" in key}
    found = {key: float(p.grad.norm() / p.numel() ** 0.5) for key, p in net.named_parameters()}
    others = sorted(value for key, value in found.items() if key not in steps)
    assert max(found[key] for key in steps) < 1e-3 * others[len(others) // 2]


@pytest.mark.parametrize("name", NETWORKS)
def test_training_takes_the_same_path_with_step_size_0_5_as_with_1(name):
    """The convolutions get the same gradients too, because the function depends on their direction alone."""
    paths = []
    for value in (0.5, 1.0):
        net = stepped(name, f"fixed({value})")
        optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(logits(net), torch.arange(16) % 10)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        paths.append(losses)
    assert paths[0] == pytest.approx(paths[1], rel=1e-3)
