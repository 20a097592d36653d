"""runtime.sync_bn: two processes with half the batch each train as one with the whole. torch wants a GPU."""

import json
from pathlib import Path

import pytest
import torch
from ranks import together

SCRIPT = Path(__file__).with_name("sync_bn_rank.py")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def train(world):
    return [json.loads(output.splitlines()[-1]) for output in together(world, SCRIPT)]


def test_two_processes_with_statistics_in_common_train_as_one():
    (one,), both = train(1), train(2)
    assert one["kinds"] == ["SyncBatchNorm"]
    assert len(set(one["losses"])) == len(one["losses"])
    for rank in both:
        assert rank["losses"] == pytest.approx(one["losses"], rel=1e-3)
        assert rank["running"] == pytest.approx(one["running"], rel=1e-3, abs=1e-3)
