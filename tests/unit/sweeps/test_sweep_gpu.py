"""Sweeps on a real GPU: streams, graphs and the shared data set. Skipped where there is none."""

import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts, for bit-equal results

import contextlib
import json

import pytest
import torch
from test_sweep_runs import StopsAfter, outcomes
from tiny_sweep import alone, entries, remains, run_sweep
from torch._dynamo.utils import counters

from timestepper import records
from timestepper.engine.checkpoint import read
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import Runtime
from timestepper.engine.signals import Signals
from timestepper.runs import build
from timestepper.runs.train import Process
from timestepper.sweeps import one_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
GRAPH = ("runtime.device=cuda", "runtime.cuda_graph=true", "runtime.channels_last=true", "run.epochs=4")
EXACT = (*GRAPH, "runtime.deterministic=true")
FAST = (*GRAPH, "runtime.precision=bf16", "runtime.compile=true")


@pytest.fixture(autouse=True)
def restored():
    yield
    Runtime(torch.device("cuda", 0)).configure()


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def last_checkpoint(folder):
    return read(sorted((folder / "checkpoints").glob("step-*.pt"))[-1])


def test_each_of_three_runs_is_the_run_alone_bit_for_bit(tmp_path):
    wanted = [*entries(tmp_path, *EXACT), *entries(tmp_path, *EXACT, recipes=("smoke/digits",), seeds=(1,))]
    assert outcomes(run_sweep(wanted)) == ["finished"] * 3
    for number, entry in enumerate(wanted):
        assert remains(entry.path) == remains(alone(entry, tmp_path / f"alone-{number}"))


def test_compiled_runs_in_half_precision_train_as_alone(tmp_path):
    wanted = entries(tmp_path, *FAST, seeds=(0, 1))
    assert outcomes(run_sweep(wanted)) == ["finished"] * 4
    for number, entry in enumerate(wanted):
        assert losses(entry.path) == pytest.approx(losses(alone(entry, tmp_path / f"alone-{number}")), rel=0.05)


def test_the_second_kind_was_compiled_ahead(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    counters.clear()
    assert outcomes(run_sweep(entries(tmp_path, *FAST))) == ["finished"] * 2
    assert counters["inductor"]["fxgraph_cache_hit"] >= 3  # forward, backward and evaluation


@pytest.mark.parametrize("recipe", ["smoke/digits", "smoke/digits-lstm"])
def test_a_graph_learns_what_single_steps_learn_and_warming_up_leaves_no_trace(tmp_path, recipe):
    graphed, single = (
        entries(tmp_path, *EXACT, f"runtime.cuda_graph={graph}", recipes=(recipe,), seeds=(seed,))[0]
        for graph, seed in (("true", 0), ("false", 0))
    )
    graphed, single = alone(graphed, tmp_path / "graphed"), alone(single, tmp_path / "single")
    assert len(losses(graphed)) == 20
    assert losses(graphed) == pytest.approx(losses(single), rel=1e-3)
    model = last_checkpoint(graphed)["model"]
    assert {int(value) for name, value in model.items() if name.endswith("num_batches_tracked")} == {20}


@pytest.mark.parametrize("looks", [20, 45, 90])
def test_a_stopped_sweep_goes_on_exactly(tmp_path, looks):
    whole, wanted = (entries(tmp_path / name, *EXACT, seeds=(0, 1)) for name in ("whole", "stopped"))
    run_sweep(whole)
    stopped = run_sweep(wanted, StopsAfter(looks))
    assert "interrupted" in outcomes(stopped)
    assert set(outcomes(run_sweep(wanted))) <= {"finished", "already finished"}
    for entry, reference in zip(wanted, whole, strict=True):
        assert remains(entry.path) == remains(reference.path)


def test_runs_are_measured_on_the_device_beside_the_others(tmp_path):
    wanted = entries(tmp_path / "runs", *EXACT, seeds=(0, 1))
    (tmp_path / "results").mkdir()
    for run in wanted:
        run.measures = ("noise",)
    assert outcomes(run_sweep(wanted, results=tmp_path / "results")) == ["finished"] * 4
    for run in wanted:
        found = records.read(run.path)
        assert found["noise"]["error"][0][0] == pytest.approx(found["final"]["test"]["error"], abs=0.02)
    assert len(records.load_records(tmp_path / "results")[0]) == 4


def test_a_run_without_memory_leaves_the_others_alone(tmp_path, monkeypatch):
    wanted = entries(tmp_path / "swept", *EXACT, recipes=("smoke/digits",), seeds=(0, 7, 1))
    whole = build.network

    def network(recipe, *rest):
        if recipe.run.seed == 7:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        return whole(recipe, *rest)

    monkeypatch.setattr(build, "network", network)
    runs = run_sweep(wanted)
    assert outcomes(runs) == ["finished", "failed", "finished"]
    assert "OutOfMemoryError" in runs[1].message
    assert remains(wanted[2].path) == remains(alone(wanted[2], tmp_path / "alone"))


def test_the_data_are_on_the_gpu_once(tmp_path):
    shared = one_gpu.Shared()
    found = [shared.dataset(entry.recipe, torch.device("cuda", 0)) for entry in entries(tmp_path, *GRAPH, seeds=(0, 1))]
    assert len({data.train.images.data_ptr() for data in found}) == 1
    assert found[0].train.images.is_cuda


def test_a_run_that_waits_for_the_device_is_passed_over(tmp_path):
    """While the device is busy the host returns from a turn at once and says that the next one would wait."""
    run = entries(tmp_path, *GRAPH, "data.batch_size=16", recipes=("smoke/digits",))[0]
    stream = torch.cuda.Stream()
    with contextlib.closing(RunDirectory(run.path)) as folder:
        process = Process(run, folder, Signals())
        turns = one_gpu.on_stream(stream, process)
        while process.step < 8:
            next(turns)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000_000)  # about a second
        taken = 0
        while not process.idle:
            next(turns)
            taken += 1
        assert taken < 40
        assert not stream.query()  # the device is still busy
        process.training.waiting.synchronize()
        assert not process.idle
        assert list(turns)
    assert process.final["test"]
