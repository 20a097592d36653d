"""Timing, peers and floor, each on cases that can be counted by hand."""

import copy
import io
import itertools
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from timestepper.bench import compare, floor, peers, timing
from timestepper.bench.steps import Inference, Settings, TrainingStep, forget
from timestepper.errors import UnknownNameError

CPU = torch.device("cpu")


class Clock:
    """A clock that only the timed calls move; ``drift`` makes the machine slower and slower."""

    def __init__(self, drift: float = 0.0):
        self.now = 0.0
        self.drift = drift

    def work(self, seconds: float):
        def call():
            self.now += seconds * (1 + self.drift * self.now)

        return call


def test_ratio_and_time_are_those_of_the_calls(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    found = timing.interleaved({"a": clock.work(0.010), "b": clock.work(0.025)}, CPU, rounds=5, seconds=1)
    assert found["a"].ms.median == pytest.approx(10)
    assert found["b"].ratio.median == pytest.approx(2.5)
    assert found["b"].ratio.low == pytest.approx(found["b"].ratio.high)


def test_drift_of_the_machine_cancels(monkeypatch):
    """The machine becomes several times slower during the run; the ratio stays."""
    clock = Clock(drift=1.0)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    found = timing.interleaved({"a": clock.work(0.01), "b": clock.work(0.02)}, CPU, rounds=20, seconds=2)
    assert found["a"].ms.high > 1.3 * found["a"].ms.low
    assert found["b"].ratio.median == pytest.approx(2, rel=0.05)


def test_a_slow_round_is_slow_for_all(monkeypatch):
    """A ratio is taken within a round, so one in which the machine was busy counts like the others."""
    clock, calls = Clock(), itertools.count()
    busy = (1, 4, 1, 2, 1, 3)  # the first is the trial
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)

    def work(seconds):
        clock.now += seconds * busy[next(calls) // 2]

    found = timing.interleaved({"a": lambda: work(1), "b": lambda: work(2)}, CPU, rounds=5, seconds=0.1)
    assert found["b"].ratio == timing.Spread(2, 2, 2)
    assert found["a"].ms.high == 3000


def test_variants_take_turns_forwards_and_backwards(monkeypatch):
    clock, order = Clock(), []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)

    def call(name):
        order.append(name)
        clock.now += 1

    timing.interleaved({name: lambda name=name: call(name) for name in "ab"}, CPU, rounds=3, seconds=0.1)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"  # once to see how long each takes, then the rounds


def test_a_spread_has_the_quartiles_of_what_was_seen():
    assert timing.Spread.of([5, 1, 3, 2, 4]) == timing.Spread(median=3, low=2, high=4)
    assert timing.Spread.of([7.0]) == timing.Spread(7.0, 7.0, 7.0)


def test_a_variant_is_compared_with_plain_and_not_plain_with_it(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock.now)
    found = compare._beside(SETTINGS, clock.work(0.010), clock.work(0.025))
    assert found.ms.median == pytest.approx(25)
    assert found.ratio.median == pytest.approx(2.5)


SETTINGS = Settings(
    model="cifar/resnet8",
    batch=2,
    device=CPU,
    precision="float32",
    channels_last=False,
    modes=("eager",),
    variants=("plain",),
    pixels=8,
    classes=4,
    rounds=2,
    seconds=0.5,
)
EAGER = SETTINGS.runtime("eager")


def tiny() -> nn.Module:
    """Behaves differently in training."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))


def test_inference_runs_without_gradients_and_as_after_training():
    run = Inference(tiny(), SETTINGS, EAGER)
    assert not run().requires_grad
    assert torch.equal(run(), tiny().eval()(run.images))


def test_a_training_step_trains_on_its_batch():
    model = tiny()
    model[3] = nn.Identity()  # no dropout: both loops are to do the same
    reference = copy.deepcopy(model)
    step = TrainingStep(model, replace(SETTINGS, batch=8), EAGER)
    optimiser = torch.optim.SGD(reference.parameters(), lr=1e-3, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for _ in range(4):  # building a step runs it four times
        optimiser.zero_grad()
        F.cross_entropy(reference(step.images), step.labels).backward()
        optimiser.step()
    for mine, theirs in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert step.first_seconds > 0


def test_the_images_have_the_layout_that_is_measured():
    for channels_last in (False, True):
        images, labels = replace(SETTINGS, channels_last=channels_last).inputs()
        assert images.is_contiguous(memory_format=torch.channels_last) == channels_last
        assert images.shape == (2, 3, 8, 8)
        assert labels.max() < 4


def test_all_variants_start_from_the_same_weights():
    plain, *others = (peers.build(name, "cifar/resnet8", 10) for name in ("plain", "plain", "literal", "lstm"))
    for other in others:
        assert torch.equal(other.state_dict()["layer2.0.conv1.weight"], plain.layer2[0].conv1.weight)


@pytest.mark.parametrize("peer", peers.PEERS)
def test_peer_stands_behind_every_branch(peer):
    plain, changed = peers.build("plain", "cifar/resnet14", 10), peers.build(peer, "cifar/resnet14", 10)
    added = {name for name, _ in changed.named_modules()} - {name for name, _ in plain.named_modules()}
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3) for block in (0, 1)]
    assert all(f"{block}.bn2.1" in added for block in blocks)
    assert changed(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_rezero_starts_as_the_shortcut_and_counts_one_parameter_per_branch():
    plain, changed = peers.build("plain", "cifar/resnet14", 10), peers.build("rezero", "cifar/resnet14", 10)
    assert sum(p.numel() for p in changed.parameters()) - sum(p.numel() for p in plain.parameters()) == 6
    features = torch.rand(2, 16, 8, 8)
    assert torch.equal(changed.layer1[0].eval()(features), features)


def test_literal_and_ours_have_the_same_parameters():
    literal, ours = (peers.build(name, "cifar/resnet14", 10) for name in ("literal", "lstm"))
    assert sum(p.numel() for p in literal.parameters()) == sum(p.numel() for p in ours.parameters())


def test_unknown_variant_is_named():
    with pytest.raises(UnknownNameError, match=r"nothing.*rezero"):
        peers.check_name("nothing")


def test_floor_of_two_layers_counted_by_hand():
    network = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Flatten(), nn.Linear(4 * 16, 5, bias=False))
    found = floor.training_floor(network, 2, (3, 4, 4), feature_bytes=2)
    image, feature, logits = 2 * 3 * 16, 2 * 4 * 16, 2 * 5
    conv = image + feature + feature + image  # the images need no gradient
    linear = feature + logits + logits + feature + feature
    parameters = 4 * 3 * 9 + 5 * 64
    assert found["features"] == 2 * (conv + linear)
    assert found["weights"] == 2 * 2 * parameters + 4 * 5 * parameters
    forward = 2 * (2 * 16 * 4 * 27) + 2 * (2 * 64 * 5)
    assert found["operations"] == 3 * forward - 2 * (2 * 16 * 4 * 27)


def test_floor_is_the_larger_of_both_times():
    step = {"features": 600, "weights": 400, "operations": 50}
    assert floor.milliseconds(step, {"bytes_per_s": 1000, "operations_per_s": 1e9}) == pytest.approx(1000)
    assert floor.milliseconds(step, {"bytes_per_s": 1e9, "operations_per_s": 25}) == pytest.approx(2000)


def test_ceilings_count_bytes_read_and_written_and_both_operations(monkeypatch):
    ticks = itertools.count(step=0.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    found = floor.ceilings(CPU, torch.float32)
    assert found == {"bytes_per_s": 2 * 4 * 2**24 / 0.5, "operations_per_s": 2 * 1024**3 / 0.5}


def test_the_table_shows_each_figure_in_its_column():
    def spread(middle):
        return {"median": middle, "low": middle - 0.1, "high": middle + 0.1}

    row = {
        "train_ms": spread(8.5),
        "train_ratio": spread(1.2),
        "times_floor": 3.25,
        "inference_ratio": spread(1.3),
        "folded_ratio": spread(1.1),
        "peak_ratio": 1.004,
        "parameters_ratio": 1.0123,
        "first_step_s": 2.5,
        "first_step_ratio": 1.25,
    }
    result = {
        "settings": {"model": "cifar/resnet8", "batch": 2, "precision": "bf16"},
        "environment": {"card": "a card"},
        "floor": {
            "ms": 2.6,
            "features": 3e9,
            "weights": 4e9,
            "operations": 5e12,
            "bytes_per_s": 6e9,
            "operations_per_s": 7e12,
        },
        "modes": {"graph": {"lstm": row, "rezero": {"error": "OSError at f: [no] room"}}},
    }
    console = Console(width=150, record=True, file=io.StringIO())
    compare.show(result, console)
    text = console.export_text()
    assert "cifar/resnet8, batch 2, bf16, graph, on a card" in text
    (line,) = (line for line in text.splitlines() if "lstm" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "lstm",
        "8.500",
        "1.200 [1.100, 1.300]",
        "3.2",
        "1.300 [1.200, 1.400]",
        "1.100 [1.000, 1.200]",
        "1.004",
        "1.0123",
        "2.5 s (1.25)",
    ]
    assert "failed" in text
    assert "rezero: OSError at f: [no] room" in text
    assert "2.600 ms; 3.000 GB of features, 4.000 GB of weights, 5.000 TFLOP, at 6 GB/s and 7.00 TFLOP/s" in text


class Small(nn.Linear):
    """With a forward of its own: torch 2.11 leaves a network alone that is made of its own layers only."""

    def forward(self, images):
        return super().forward(images.flatten(1))


def test_a_first_step_compiles_anew(tmp_path, monkeypatch):
    """What an earlier compilation left on disk would make the time of a later one too small to compare."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    forget()
    torch._dynamo.utils.counters.clear()
    TrainingStep(Small(192, 4), SETTINGS, SETTINGS.runtime("compiled"))
    assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] > 0
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]  # neither read nor written
