"""AdamW goes on where it was stopped, to the last bit, and a smoothed loss is the one that is written down."""

import json

import pytest
import torch
from tiny_training import CLASSES, TinyBatches, close, end_state, network, trained, training, vanished
from torch.nn import functional as F

from timestepper.errors import CheckpointError

ADAMW = {"kind": "adamw", "lr": 0.01, "label_smoothing": 0.1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return end_state(trained(tmp_path_factory.mktemp("whole") / "run", **ADAMW))


@pytest.mark.parametrize("step", [1, 4, 7])
def test_resume_is_exact(step, tmp_path, whole):
    vanished(step, tmp_path / "run", checkpoint_steps=1, **ADAMW)
    second = training(tmp_path / "run", checkpoint_steps=1, **ADAMW)
    assert second.step == step
    second.run()
    close(second)
    assert all(torch.equal(a, b) for a, b in zip(end_state(second), whole, strict=True))


def test_a_run_keeps_its_optimiser(tmp_path):
    first = training(tmp_path / "run", **ADAMW)
    next(first.steps())
    close(first)
    with pytest.raises(CheckpointError, match=r"optimiser\.kind cannot change within a run"):
        training(tmp_path / "run")


def test_the_first_loss_is_the_smoothed_one(tmp_path):
    trained(tmp_path / "run", model=network(dropout=0.0), label_smoothing=0.3)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    images, labels = next(TinyBatches().epoch(0))
    with torch.no_grad():
        log_p = F.log_softmax(network(dropout=0.0)(images), 1)
    spread = 0.3 / CLASSES + 0.7 * F.one_hot(labels, CLASSES)
    assert first["loss"] == pytest.approx(-(spread * log_p).sum(1).mean().item(), rel=1e-5)
