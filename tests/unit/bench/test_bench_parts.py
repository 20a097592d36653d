"""Timing, peers, floor and the comparison of graphs, each on cases that can be counted by hand."""

import pytest
import torch
from torch import nn

import timestepper
from timestepper.bench import peers, timing
from timestepper.bench.floor import Ceilings, Floor, training_floor
from timestepper.bench.inference import graph_differences
from timestepper.bench.training import Case, TrainingStep, forget, runtime
from timestepper.errors import UnknownNameError
from timestepper.models import CifarResNet

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
    found = training_floor(network, 2, (3, 4, 4), feature_bytes=2)
    image, feature, logits = 2 * 3 * 16, 2 * 4 * 16, 2 * 5
    conv = image + feature + feature + image  # the images need no gradient
    linear = feature + logits + logits + feature + feature
    parameters = 4 * 3 * 9 + 5 * 64
    assert found.features == 2 * (conv + linear)
    assert found.weights == 2 * 2 * parameters + 4 * 5 * parameters
    forward = 2 * (2 * 16 * 4 * 27) + 2 * (2 * 64 * 5)
    assert found.operations == 3 * forward - 2 * (2 * 16 * 4 * 27)


def test_floor_of_attached_adds_only_the_optimiser():
    plain = CifarResNet(8)
    attached = timestepper.attach(CifarResNet(8))
    floors = [training_floor(network, 2, (3, 32, 32), 4) for network in (plain, attached)]
    extra = sum(parameter.numel() for parameter in attached.controllers.parameters())
    assert floors[1].weights - floors[0].weights == 5 * 4 * extra
    assert (floors[0].features, floors[0].operations) == (floors[1].features, floors[1].operations)


def test_floor_is_the_larger_of_both_times():
    floor = Floor(features=600, weights=400, operations=50)
    assert floor.milliseconds(Ceilings(bytes_per_s=1000, operations_per_s=1e9)) == pytest.approx(1000)
    assert floor.milliseconds(Ceilings(bytes_per_s=1e9, operations_per_s=25)) == pytest.approx(2000)


@pytest.mark.parametrize("model", ["cifar/resnet8", "cifar/densenet40"])
def test_folded_graph_is_plain_node_for_node(model):
    plain, attached = (peers.build(name, model, 10) for name in ("plain", "lstm"))
    images = torch.randn(1, 3, 32, 32)
    assert graph_differences(plain, timestepper.fold(attached), images) == []


def test_graph_comparison_sees_a_peer():
    plain, other = (peers.build(name, "cifar/resnet8", 10) for name in ("plain", "rezero"))
    assert graph_differences(plain, other, torch.randn(1, 3, 32, 32))


@pytest.mark.slow
def test_a_first_step_compiles_anew():
    """What an earlier compilation left on disk would make the time of a later one too small to compare."""
    case = Case(2, (3, 8, 8), 4, runtime("compiled", CPU, "float32", False))
    for _ in range(2):
        forget()
        torch._dynamo.utils.counters.clear()
        TrainingStep(nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), case)
        assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"] > 0
        assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] == 0
