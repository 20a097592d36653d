"""Attached networks on the fused path: the same network as on the plain path."""

import copy
import pickle

import pytest
import torch
from families import FAMILIES

import timestepper
from timestepper import controllers, kernels
from timestepper.controllers.lstm import LSTM
from timestepper.errors import StepSizeError
from timestepper.models import CifarResNet

IMAGES = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def small(**options) -> torch.nn.Module:
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(14, num_classes=5, width=8).double(), **options)
    for parameter in net.controllers.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    net.controllers.fused = True
    return net


def gradients(net, path: bool) -> dict[str, torch.Tensor]:
    net.controllers.fused = path
    net.zero_grad()
    logits = net(IMAGES)
    logits.square().sum().backward()
    return {"logits": logits.detach(), **{name: p.grad for name, p in net.named_parameters() if p.grad is not None}}


def assert_both_paths_agree(net) -> None:
    plain, mine = gradients(net, False), gradients(net, True)
    assert plain.keys() == mine.keys()
    for name in plain:
        torch.testing.assert_close(
            mine[name], plain[name], rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize(
    ("family", "controller"), [*((family, "lstm") for family in FAMILIES), ("cifar resnet20", "two_fc")]
)
def test_both_paths_agree(family, controller):
    torch.manual_seed(0)
    assert_both_paths_agree(timestepper.attach(FAMILIES[family]().double(), controller))


def test_channels_last_agrees():
    assert_both_paths_agree(small().to(memory_format=torch.channels_last))


@pytest.mark.parametrize("gradient", [True, False])
def test_visible_descriptors_agree(gradient):
    net = small(descriptor="visible", descriptor_gradient=gradient)
    assert net.controllers["layer1"].input_weight.shape[1] % 2 == 1  # the scale is appended
    assert_both_paths_agree(net)


def test_descriptor_gradient_can_be_stopped():
    stopped, flowing = small(descriptor_gradient=False), small()
    assert gradients(stopped, True)["layer1.0.conv1.weight"].ne(gradients(flowing, True)["layer1.0.conv1.weight"]).any()
    assert_both_paths_agree(stopped)


def test_frozen_backbone_and_frozen_controller():
    net = small()
    timestepper.freeze_base(net)
    assert all(name == "logits" or name.startswith("controllers.") for name in gradients(net, True))
    net = small()
    net.controllers.requires_grad_(False)
    assert not any(name.startswith("controllers.") for name in gradients(net, True))


def test_fold_is_exact():
    net = small().eval()
    with torch.no_grad():
        assert torch.equal(timestepper.fold(net)(IMAGES), net(IMAGES))


def test_copies_carry_no_addresses():
    net = small().eval()
    logits = net(IMAGES)
    copied = copy.deepcopy(net)
    loaded = pickle.loads(pickle.dumps(net))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert torch.equal(copied(IMAGES), logits)
    assert torch.equal(loaded(IMAGES), logits)


def test_compiles_without_breaks_with_three_operators():
    net = small()
    seen = []

    def backend(graph, inputs):
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    logits = torch.compile(net, backend=backend, fullgraph=True)(IMAGES)
    torch._dynamo.reset()
    assert sum("timestepper.describe" in target for target in seen) == 1
    assert sum("timestepper.lstm_steps" in target for target in seen) == 1
    assert sum("timestepper.scale" in target for target in seen) == 1
    torch.testing.assert_close(logits, small()(IMAGES))


def test_autocast_leaves_the_controller_in_float32():
    net = small().float()
    with torch.autocast("cpu", torch.bfloat16):
        inside = timestepper.step_sizes(net)
    for name, dt in timestepper.step_sizes(net).items():
        assert dt.dtype == torch.float32
        assert torch.equal(inside[name], dt)


def test_plain_path_runs_where_kernels_cannot(monkeypatch):
    """On a CPU nothing is fused unless asked for."""
    net = small().float()
    net.controllers.fused = None
    monkeypatch.setattr(kernels, "step_sizes", lambda *_, **__: pytest.fail("the fused path ran"))
    monkeypatch.setattr(kernels, "scale", lambda *_, **__: pytest.fail("the fused path ran"))
    net(IMAGES.float())


def test_stages_too_wide_for_the_kernels_agree(monkeypatch):
    monkeypatch.setattr(kernels, "WIDEST", 2)
    monkeypatch.setattr(kernels.ops, "lstm_steps", lambda *_: pytest.fail("the kernels of the LSTM ran"))
    assert_both_paths_agree(small())


class Squared(LSTM):
    """A user's own: what it inherits is not what it computes."""

    def forward(self, descriptors):
        return super().forward(descriptors).square()


def test_a_subclass_of_the_lstm_is_not_taken_for_one(monkeypatch):
    monkeypatch.setitem(controllers.KINDS, "squared", Squared)
    assert_both_paths_agree(small(controller="squared"))


def test_one_kernel_scales_what_has_one_number_per_channel_in_one_precision():
    steps, norm = torch.rand(4), torch.rand(4)
    assert not kernels.scales([norm, norm], steps.double(), insist=True)  # and is not what is known of others
    assert kernels.scales([norm, norm], steps, insist=True)
    assert not kernels.scales([norm, norm], steps)  # on a CPU only where it is asked for
    for other in (norm.bfloat16(), norm.double(), torch.rand(4, 3), torch.rand(8)[::2], norm.to("meta")):
        assert not kernels.scales([norm, other], steps, insist=True)


OBSTACLES = {
    "controller": "its controller reads no weights",
    "half": "the network is in torch.bfloat16, not in float32",
    "mixed": "convolutions and controllers differ in precision or device",
    "filter": "a parameter is not stored in a regular layout",
    "matrix": "a parameter is not stored in a regular layout",
}


def turned(weight: torch.Tensor) -> torch.Tensor:
    """The same numbers, the last two dimensions stored the other way round."""
    return weight.mT.contiguous().mT


@pytest.mark.parametrize("reason", OBSTACLES)
def test_insisting_says_what_is_in_the_way(reason):
    net = timestepper.attach(CifarResNet(8), "independent" if reason == "controller" else "lstm")
    if reason == "half":
        net.to(torch.bfloat16)
    if reason == "mixed":
        net.controllers.double()
    if reason in ("filter", "matrix"):
        owner = net.layer2[0].conv1.weight if reason == "filter" else net.controllers["layer2"].gate_weight_x
        owner.data = turned(owner.data)
    net.controllers.fused = True
    with pytest.raises(
        StepSizeError, match=f"the fused controller cannot run here: {OBSTACLES[reason]}; set net.controllers.fused"
    ):
        timestepper.step_sizes(net)
    if reason not in ("half", "mixed"):
        net.controllers.fused = None
        assert timestepper.step_sizes(net)["layer2"].isfinite().all()
