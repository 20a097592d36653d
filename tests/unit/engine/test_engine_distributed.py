"""Two processes with gloo against one process with the same global batch, in a network without batch norm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from tiny_training import TinyBatches, close, end_state, network, trained, training

from timestepper.engine import distributed
from timestepper.engine.distributed import Group
from timestepper.engine.evaluation import Evaluation
from timestepper.errors import DistributedError, LoaderError

SCRIPT = Path(__file__).with_name("one_rank.py")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Two processes run every case of one_rank.py: the folder, and how each case ended on each rank."""
    folder = tmp_path_factory.mktemp("together")
    outputs = ranks.together(2, SCRIPT, folder)
    return folder, [dict(line.split(": ", 1) for line in output.splitlines()) for output in outputs]


def losses(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run = trained(folder, model=network(norm=False, dropout=0.0))
    return folder, run.model.state_dict()


def test_two_processes_give_the_losses_and_weights_of_one(together, alone):
    folder, ends = together
    assert [end["train"] for end in ends] == ["finished at 10"] * 2
    assert losses(folder / "train") == pytest.approx(losses(alone[0]), rel=1e-5)
    finished = training(folder / "train", model=network(norm=False, dropout=0.0))
    for name, value in finished.model.state_dict().items():
        torch.testing.assert_close(value, alone[1][name], rtol=1e-5, atol=1e-6)
    close(finished)


def test_two_processes_are_bit_equal_to_one_that_takes_its_batch_in_two_parts(together, tmp_path):
    """Halves of numbers are exact, and a sum of two has one order: each rank's share is one part."""
    one = trained(tmp_path / "run", model=network(norm=False, dropout=0.0), accumulate=2)
    two = training(together[0] / "train", model=network(norm=False, dropout=0.0))
    close(two)
    assert all(torch.equal(a, b) for a, b in zip(end_state(two), end_state(one), strict=True))


def test_two_processes_with_two_parts_each_exchange_gradients_once_an_update(together, alone):
    folder, ends = together
    assert [end["parts"] for end in ends] == ["finished at 10"] * 2
    assert {end["sums of train"] for end in ends} == {end["sums of parts"] for end in ends} != {"0"}
    assert losses(folder / "parts") == pytest.approx(losses(alone[0]), rel=1e-5)


def test_two_processes_test_all_images_with_the_statistics_that_are_saved(together):
    folder, ends = together
    assert [end["norm"] for end in ends] == ["finished at 10"] * 2
    logged = json.loads((folder / "norm/metrics.jsonl").read_text().splitlines()[-1])["test"]
    saved = training(folder / "norm", model=network(dropout=0.0))
    alone = Evaluation(saved.model, saved.runtime, Group()).run(TinyBatches(training=False))
    close(saved)
    assert logged == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize(("case", "step"), [("signal", 4), ("evaluation", 5)])
def test_a_signal_to_one_rank_stops_all_at_one_step_and_one_process_can_go_on(together, alone, case, step):
    folder, ends = together
    assert [end[case] for end in ends] == [f"stopped by 15 at {step}"] * 2
    again = training(folder / case, model=network(norm=False, dropout=0.0))
    assert again.step == step
    again.run()
    close(again)
    assert losses(folder / case) == pytest.approx(losses(alone[0]), rel=1e-5)


def test_alone_everything_is_local():
    group = Group()
    row = torch.arange(3.0)
    assert torch.equal(group.gather(row), row[None])
    assert torch.equal(group.sum(row.clone()), row)
    acted = []
    group.agree(lambda: acted.append(1))
    assert acted == [1]
    with pytest.raises(ZeroDivisionError):
        group.agree(lambda: 1 / 0)


def test_a_lost_process_is_told_from_other_errors():
    many = Group(rank=1, world=2, active=True)
    assert isinstance(distributed.explain(RuntimeError("[gloo] Connection closed by peer"), many, 7), DistributedError)
    assert isinstance(distributed.explain(RuntimeError("wait timeout after 3000ms"), many, 7), DistributedError)
    assert distributed.explain(RuntimeError("size mismatch"), many, 7) is None
    assert distributed.explain(RuntimeError("Connection closed"), Group(), 7) is None
    assert distributed.explain(LoaderError("lost the connection to a worker"), many, 7) is None


def test_leaving_a_broken_group_hides_no_error(monkeypatch):
    left = []

    def break_down():
        left.append(1)
        raise RuntimeError("Application timeout caused pair closure")

    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed.dist, "destroy_process_group", break_down)
    distributed.stop()
    assert left == [1]


MEETINGS = """
import gc, os, torch
from ranks import free_port
from torch import nn
from timestepper.engine import distributed

gc.freeze()  # so that collecting is quick, and hits
for _ in range(30):
    os.environ["MASTER_PORT"] = str(free_port())
    group = distributed.start(torch.device("cpu"), 60)
    model = distributed.wrap(nn.Linear(2, 2), group)
    group.broadcast([torch.zeros(3)])
    distributed.stop()
    del model  # which holds the group, too
    gc.collect()
"""


def test_leaving_a_group_again_and_again_does_not_hang():
    """Of torch 2.11, one end in ten waited for a thread that waited for it."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", MEETINGS], env={**os.environ, **alone}, timeout=300)
    assert done.returncode == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_nobody_answers(monkeypatch, unused_port, capsys, rank):
    for name, value in {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": unused_port}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(DistributedError, match=f"rank {rank} cannot reach the other processes"):
        distributed.start(torch.device("cpu"), 2)
    (line,) = capsys.readouterr().err.splitlines()  # after a quarter of the time
    assert line.startswith(f"warning: rank {rank} of 2 waits for the other processes, until ")


def test_several_machines_are_told_what_to_set(monkeypatch):
    assert distributed.advice() is None
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert distributed.advice() is None
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in distributed.advice()
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert distributed.advice() is None
