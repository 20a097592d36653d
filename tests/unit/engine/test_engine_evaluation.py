import pytest
import torch
from tiny_training import CLASSES, TinyBatches, network
from torch.nn import functional as F

from timestepper.engine.distributed import Group
from timestepper.engine.evaluation import Evaluation
from timestepper.engine.runtime import Runtime

CPU = Runtime(torch.device("cpu"))


def by_hand(model, batches):
    """The same figures sample by sample, padding left out."""
    model.eval()
    losses, wrong, wrong5 = [], [], []
    with torch.no_grad():
        for images, labels in batches.epoch(0):
            for image, label in zip(images, labels, strict=True):
                if label >= 0:
                    logits = model(image[None])[0]
                    losses.append(F.cross_entropy(logits, label).item())
                    order = logits.argsort(descending=True)
                    wrong.append(order[0] != label)
                    wrong5.append(label not in order[:5])
    model.train()
    count = len(losses)
    return {
        "loss": sum(losses) / count,
        "error": float(sum(wrong)) / count,
        "top5_error": float(sum(wrong5)) / count,
        "samples": count,
    }


def test_padding_counts_nothing():
    model, batches = network(), TinyBatches(training=False)
    found = Evaluation(model, CPU, Group()).run(batches)
    assert found == pytest.approx(by_hand(model, batches))
    assert found["samples"] == 13


def test_modes_are_put_back_and_gradients_stay_on():
    model = network()
    steps = Evaluation(model, CPU, Group()).steps(TinyBatches(training=False))
    next(steps)
    assert not model.training
    assert torch.is_grad_enabled()  # nothing leaks to whoever drives the generator
    steps.close()
    assert model.training
    model.eval()
    Evaluation(model, CPU, Group()).run(TinyBatches(training=False))
    assert not model.training


def test_it_can_be_repeated_and_polled():
    model, batches = network(), TinyBatches(training=False)
    evaluation, polled = Evaluation(model, CPU, Group()), []
    assert evaluation.run(batches, lambda: polled.append(1)) == evaluation.run(batches)
    assert len(polled) == batches.steps


def test_fewer_than_five_classes():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))

    class Three(TinyBatches):
        def epoch(self, epoch, first_step=0):
            for images, labels in super().epoch(epoch, first_step):
                yield images, labels.clamp(max=2)

    assert CLASSES > 3
    assert Evaluation(model, CPU, Group()).run(Three(training=False))["top5_error"] == 0
