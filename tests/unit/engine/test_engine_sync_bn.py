"""runtime.sync_bn: two processes with half the batch each train as one with the whole. torch wants a GPU."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("sync_bn_rank.py")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def train(world):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=os.environ | common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def test_two_processes_with_statistics_in_common_train_as_one():
    (one,), both = train(1), train(2)
    assert one["kinds"] == ["SyncBatchNorm"]
    assert len(set(one["losses"])) == len(one["losses"])
    for rank in both:
        assert rank["losses"] == pytest.approx(one["losses"], rel=1e-3)
        assert rank["running"] == pytest.approx(one["running"], rel=1e-3, abs=1e-3)
