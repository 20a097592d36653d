import contextlib
import copy

import pytest
import torch
from torch.nn import functional as F

import timestepper
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.errors import RecipeError
from timestepper.models import CifarResNet
from timestepper.recipe.load import load
from timestepper.runs.finish import epochs_of
from timestepper.runs.observe import NetworkObserver
from timestepper.runs.run import Run
from timestepper.runs.start import train
from timestepper.runs.train import Process
from timestepper.stability import Monitor, open_chain, proposition_1


@pytest.mark.parametrize("kind", ["plain", "stepped"])
def test_the_first_look_agrees_with_the_bound(request, digits, kind):
    net = request.getfixturevalue(kind)
    scalars = Monitor((1, 8, 8), first=400).observe(net)
    bound = proposition_1(open_chain(net, digits.test[0][:1]))
    assert scalars["log_bound"] == pytest.approx(bound.log, rel=1e-3)
    for stage, part in bound.stages.items():
        assert scalars[f"log_bound/{stage}"] == pytest.approx(part, rel=1e-2)
    times = {name: value for name, value in scalars.items() if name.startswith("evolution_time/")}
    if kind == "stepped":
        expected = timestepper.evolution_time(net)
        assert times == {f"evolution_time/{stage}": time for stage, time in expected.items()}
    else:
        assert not times


def test_a_few_warm_rounds_follow_the_weights_in_training(digits):
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(8, in_chans=1, width=8), "lstm")
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    monitor = Monitor((1, 8, 8))
    images, labels = digits.train
    for epoch in range(4):
        for chosen in torch.randperm(512, generator=torch.Generator().manual_seed(epoch)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            optimiser.step()
        seen = monitor.observe(net)["log_bound"]
    exact = proposition_1(open_chain(net, digits.test[0][:1]), tolerance=1e-7).log
    assert seen == pytest.approx(exact, rel=0.03)
    assert seen <= exact * 1.001
    cold = Monitor((1, 8, 8), first=5).observe(net)["log_bound"]  # as many rounds without the warm start
    assert abs(seen - exact) < abs(cold - exact) / 2


def test_looking_changes_nothing(stepped):
    stepped.train()
    before = copy.deepcopy(stepped.state_dict())
    state, hooks = torch.random.get_rng_state(), hooks_of(stepped)
    monitor = Monitor((1, 8, 8))
    monitor.observe(stepped)
    monitor.observe(stepped)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert stepped.training
    assert all(torch.equal(value, before[name]) for name, value in stepped.state_dict().items())
    assert hooks_of(stepped) == hooks
    stepped.eval()


def hooks_of(net):
    return [(list(module._forward_pre_hooks), list(module._forward_hooks)) for module in net.modules()]


@pytest.mark.parametrize(
    ("model", "reason"), [("timm/seresnet18", r"layer1\.0\.se"), ("cifar/densenet22", "layers between")]
)
def test_a_network_without_a_bound_is_refused_before_training(model, reason):
    net = timestepper.adapters.create_model(model, in_chans=1)
    with pytest.raises(RecipeError, match=rf"^run\.monitor: .*{reason}.*; set run\.monitor=false$"):
        NetworkObserver(net, (1, 8, 8), monitor=True)


def run(recipe, path):
    assert train(Run(recipe, "smoke", path)) == 0


def test_a_refused_monitor_leaves_no_run_behind(tmp_path):
    recipe = load("smoke/digits", ["run.monitor=true", "model.name=cifar/densenet22"])
    with pytest.raises(RecipeError, match=r"run\.monitor"):
        run(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "status.json").exists()


def test_every_epoch_of_a_run_is_looked_at(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recipe = load("smoke/digits-lstm", ["run.monitor=true", "run.tensorboard=true", "run.epochs=2"])
    run(recipe, tmp_path / "run")
    names = {
        name for stage in ("layer1", "layer2", "layer3") for name in (f"log_bound/{stage}", f"evolution_time/{stage}")
    } | {"log_bound"}
    epochs = epochs_of(tmp_path / "run")
    assert len(epochs) == 2
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    for name in names:
        logged = [epoch["scalars"][name] for epoch in epochs]
        assert [event.value for event in events.Scalars(name)] == pytest.approx(logged)
    for epoch in epochs:
        parts = [epoch["scalars"][f"log_bound/{stage}"] for stage in ("layer1", "layer2", "layer3")]
        assert sum(parts) == pytest.approx(epoch["scalars"]["log_bound"])


def test_a_run_that_goes_on_logs_what_it_would_have_logged(tmp_path):
    """The warm start is part of the checkpoint: metrics.jsonl has the same bytes."""
    changes = ["run.monitor=true", "run.epochs=3", "run.checkpoint_epochs=1", "runtime.device=cpu"]
    recipe = load("smoke/digits-lstm", changes)
    run(recipe, tmp_path / "whole")
    with contextlib.closing(RunDirectory(tmp_path / "parts")) as folder:
        process = Process(Run(recipe, "smoke", folder.path), folder, Signals())
        for _ in process.steps():
            if process.step == 30:  # in the second epoch: it goes on from the end of the first
                break
    assert len(epochs_of(tmp_path / "parts")) == 1
    run(recipe, tmp_path / "parts")
    whole, parts = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "parts"))
    assert b"log_bound" in whole
    assert parts == whole
