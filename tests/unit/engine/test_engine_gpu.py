"""What only a CUDA device can show: graphs, late reports, streams. Skipped where there is none."""

import math
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts, for bit-equal results

import pytest
import torch
from tiny_training import EPOCHS, STEPS, TinyBatches, close, network, training

from timestepper.engine.distributed import Group
from timestepper.engine.evaluation import Evaluation
from timestepper.engine.graph import Graphed
from timestepper.engine.loop import Interrupted
from timestepper.engine.runtime import Runtime
from timestepper.engine.signals import Signals
from timestepper.errors import DivergedError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(autouse=True)
def deterministic():
    Runtime(CUDA, deterministic=True).configure()
    yield
    Runtime(CUDA).configure()


class Resident(TinyBatches):
    """Batches that wait on the device, as those of small data sets do."""

    def __init__(self, **options):
        super().__init__(**options)
        self.kept = {epoch: list(super(Resident, self).epoch(epoch)) for epoch in range(30)}

    def epoch(self, epoch, first_step=0):
        yield from self.kept[epoch][first_step:]


def gpu_training(folder=None, **options):
    return training(folder, device="cuda", **{"batches": Resident, **options})


def weights(run):
    return [value.cpu() for value in (*run.model.state_dict().values(), *run.state()["momentum"])]


def assert_equal(ours, theirs):
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def assert_close(ours, theirs, tolerance=1e-4):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "bf16"},
        {"channels_last": True},
        {"compile": True},
        {"kind": "adamw", "lr": 0.01},
        {"accumulate": 4},
    ],
)
def test_a_graph_trains_like_single_steps(options):
    graphed, single = gpu_training(cuda_graph=True, epochs=4, **options), gpu_training(epochs=4, **options)
    graphed.run()
    single.run()
    assert isinstance(graphed._update, Graphed)
    assert graphed._update.recorded
    assert_close(weights(graphed), weights(single))
    assert graphed.best == single.best
    assert list(graphed.model.state_dict()) == list(network().state_dict())


def test_the_cpu_agrees():
    # Dropout draws other numbers on a CPU, so there is none here.
    gpu = gpu_training(cuda_graph=True, model=network(dropout=0.0))
    cpu = training(model=network(dropout=0.0))
    gpu.run()
    cpu.run()
    assert_close(weights(gpu), weights(cpu), 1e-3)


def test_dropout_in_a_graph_follows_seed_and_step():
    first, same, other = (gpu_training(cuda_graph=True, epochs=4, seed=seed) for seed in (0, 0, 1))
    for run in (first, same, other):
        run.run()
    assert_equal(weights(first), weights(same))
    assert any(not torch.equal(a, b) for a, b in zip(weights(first), weights(other), strict=True))


def test_a_step_never_waits_for_the_device():
    run = gpu_training(cuda_graph=True, epochs=20)
    steps = run.steps()
    while run.step < 2 * STEPS + 1:  # graphs of update and evaluation are recorded, the pinned slots are there
        next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        while run.step < 3 * STEPS - 1:
            next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    list(steps)


class NaNAt(Resident):
    """Images of one step are not numbers."""

    at = 7

    def epoch(self, epoch, first_step=0):
        for step, (images, labels) in enumerate(super().epoch(epoch, first_step), epoch * self.steps + first_step + 1):
            yield (images * math.nan if self.training and step == self.at else images), labels


@pytest.mark.parametrize("graph", [False, True])
def test_a_non_finite_step_is_reported_late_and_leaves_the_weights_of_the_step_before(tmp_path, graph):
    reference = gpu_training(cuda_graph=graph, epochs=4)
    steps = reference.steps()
    while reference.step < NaNAt.at - 1:
        next(steps)
    expected = [p.detach().clone() for p in reference.model.parameters()]
    run = gpu_training(tmp_path / "run", cuda_graph=graph, epochs=4, batches=NaNAt, checkpoint_steps=3)
    with pytest.raises(DivergedError, match=f"step {NaNAt.at}: loss nan.*weights of step {NaNAt.at - 1}"):
        run.run()
    assert_equal([p.detach() for p in run.model.parameters()], expected)
    close(run)
    again = gpu_training(tmp_path / "run", epochs=4)
    assert again.step == 6
    close(again)


@pytest.mark.parametrize("stop_at", [1, 4, 8, 13])
def test_resume_is_exact_with_deterministic_kernels(tmp_path, stop_at):
    whole = gpu_training(tmp_path / "whole", cuda_graph=True, epochs=4)
    whole.run()
    close(whole)
    signals = Signals()
    first = gpu_training(tmp_path / "run", cuda_graph=True, epochs=4, signals=signals)
    steps = first.steps()
    while first.step < stop_at:
        next(steps)
    signals.stop = 15
    with pytest.raises(Interrupted):
        list(steps)
    close(first)
    second = gpu_training(tmp_path / "run", cuda_graph=True, epochs=4)
    assert second.step >= stop_at
    second.run()
    close(second)
    assert_equal(weights(second), weights(whole))
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_runs_on_streams_of_their_own_do_not_disturb_each_other():
    alone = [gpu_training(cuda_graph=True, epochs=4, seed=seed) for seed in (0, 1)]
    for run in alone:
        run.run()
    streams = [torch.cuda.Stream() for _ in alone]
    together = []
    for seed, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            together.append(gpu_training(cuda_graph=True, epochs=4, seed=seed))
    pairs = [(run.steps(), stream) for run, stream in zip(together, streams, strict=True)]
    while pairs:
        for pair in list(pairs):
            with torch.cuda.stream(pair[1]):
                if next(pair[0], None) is None:
                    pairs.remove(pair)
    torch.cuda.synchronize()
    for run, reference in zip(together, alone, strict=True):
        assert_equal(weights(run), weights(reference))


def test_all_metrics_arrive_although_they_are_late(tmp_path):
    run = gpu_training(tmp_path / "run", cuda_graph=True)
    run.run()
    close(run)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == EPOCHS * STEPS + EPOCHS


def test_a_graph_is_left_out_where_shapes_change_or_recording_fails():
    told = []
    doubled = Graphed(lambda x: x * 2, told.append)
    for size in (4, 4, 4, 4, 4, 3, 4):
        assert torch.equal(doubled(torch.full((size,), 3.0, device=CUDA)), torch.full((size,), 6.0, device=CUDA))
    assert doubled.recorded
    asking = Graphed(lambda x: x * float(x.sum()), told.append)
    for _ in range(6):
        assert torch.equal(asking(torch.ones(2, device=CUDA)), torch.full((2,), 2.0, device=CUDA))
    assert not asking.recorded
    assert len(told) == 1
    assert told[0].startswith("no CUDA graph: ")


def test_evaluation_in_a_graph_gives_the_figures_of_the_cpu():
    model = network()
    expected = Evaluation(model, Runtime(torch.device("cpu")), Group()).run(TinyBatches(training=False))
    evaluation = Evaluation(model.to(CUDA), Runtime(CUDA, cuda_graph=True), Group(device=CUDA))
    for _ in range(4):
        found = evaluation.run(TinyBatches(training=False, device="cuda"))
    assert found == pytest.approx(expected, rel=1e-4)
