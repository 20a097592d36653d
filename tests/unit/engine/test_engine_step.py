"""One update by itself, where the loop around it would stop in time."""

import math

import pytest
import torch
from tiny_training import BATCH, TinyBatches, network
from torch.nn import functional as F

from timestepper.engine import optimiser
from timestepper.engine.distributed import Group
from timestepper.engine.runtime import Runtime
from timestepper.engine.step import Row, UpdateStep

QUIET = torch.zeros(2)


@pytest.fixture
def model():
    return network(dropout=0.0)


@pytest.fixture
def update(model):
    built = optimiser.build([{"params": model.parameters()}], lr=0.1)
    return UpdateStep(model, model, built, Runtime(torch.device("cpu")), Group())


def test_a_row_tells_loss_gradient_and_hits_of_the_samples_that_are_there(model, update):
    images, labels = next(TinyBatches().epoch(0))
    labels[5:] = -1
    logits = model(images)
    loss = F.cross_entropy(logits[:5], labels[:5])
    loss.backward()
    norm = math.sqrt(sum(parameter.grad.pow(2).sum().item() for parameter in model.parameters()))
    correct = (logits[:5].argmax(1) == labels[:5]).sum().item()
    (values,) = update(images, labels, torch.tensor([15.0, 1.0])).tolist()
    assert values == pytest.approx(
        list(vars(Row(0, loss.item(), norm, correct, 5, stop=15, save=1)).values()), rel=1e-5
    )
    assert BATCH > 5


def test_after_a_bad_update_no_later_one_changes_a_weight(model, update):
    """The host may learn of it sixteen updates late, and must find the weights as they were."""
    images, labels = next(TinyBatches().epoch(0))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert update(images * math.inf, labels, QUIET)[0, 0] == 1
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
    assert update(images, labels, QUIET)[0, 0] == 0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
