"""Where step sizes begin: about one half as in the paper, at one to the last bit, or at a number."""

import copy
import warnings

import pytest
import timm
import torch
import torchvision
from families import FAMILIES
from torch import nn

import timestepper
from timestepper.errors import StepSizeError

LEARNED = ["lstm", "two_fc", "independent"]


def moved(net):
    """One step of training, in which controllers move."""
    optimiser = torch.optim.SGD(timestepper.controller_parameters(net), lr=5.0)
    net.train()
    net(torch.randn(4, 3, 32, 32)).square().mean().backward()
    optimiser.step()
    return net.eval()


@pytest.mark.parametrize("kind", LEARNED)
@pytest.mark.parametrize("family", ["timm resnet18", "timm seresnet50", "cifar resnet20", "densenet", "cliquenet"])
def test_identity_changes_no_bit(family, kind):
    net = FAMILIES[family]().eval()
    state, images = copy.deepcopy(net.state_dict()), torch.randn(2, 3, 32, 32)
    before = net(images)
    timestepper.attach(net, kind, start="identity")
    assert torch.equal(net(images), before)
    assert all((dt == 1).all() for dt in timestepper.step_sizes(net).values())
    assert all(torch.equal(net.state_dict()[key], value) for key, value in state.items())
    folded = timestepper.fold(net)
    assert torch.equal(folded(images), before)
    assert all(torch.equal(folded.state_dict()[key], value) for key, value in state.items())
    assert torch.equal(timestepper.detach(net)(images), before)


def test_identity_leaves_a_discovered_network_as_it_was():
    net = timm.create_model("test_vit", img_size=32, patch_size=8).eval()
    images = torch.randn(2, 3, 32, 32)
    before = net(images)
    timestepper.attach(net, example=images, start="identity")
    assert torch.equal(net(images), before)
    assert torch.equal(net.blocks[0](torch.ones(1, 4, 64)), timestepper.detach(net).blocks[0](torch.ones(1, 4, 64)))


@pytest.mark.parametrize("kind", LEARNED)
def test_a_trained_identity_folds_and_is_dt_over_dt0(kind):
    net = timestepper.attach(FAMILIES["cifar resnet20"](), kind, start="identity")
    first = net.controllers.dt0.clone()
    moved(net)
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(timestepper.fold(net)(images), net(images))
    assert torch.equal(net.controllers.dt0, first)
    sizes = torch.cat([dt.flatten() for dt in timestepper.step_sizes(net).values()])
    assert not torch.allclose(sizes, torch.ones_like(sizes))
    plain = timestepper.attach(timestepper.detach(copy.deepcopy(net)), kind)
    plain.controllers.load_state_dict({k: v for k, v in net.controllers.state_dict().items() if k != "dt0"})
    own = torch.cat([dt.flatten() for dt in timestepper.step_sizes(plain).values()])
    torch.testing.assert_close(sizes, own / first, rtol=1e-6, atol=0)


def test_a_number_is_where_they_begin():
    net = timestepper.attach(FAMILIES["cifar resnet20"](), start=0.25)
    assert all((dt == 0.25).all() for dt in timestepper.step_sizes(net).values())


def test_the_first_step_sizes_are_saved_with_the_controllers(tmp_path):
    net = moved(timestepper.attach(FAMILIES["cifar resnet20"](), start="identity"))
    images = torch.randn(2, 3, 32, 32)
    wanted = net(images)
    path = timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    base = timestepper.detach(net)
    assert torch.equal(timestepper.load_controllers(base, path)(images), wanted)
    other = timestepper.attach(FAMILIES["cifar resnet20"](), start="identity").eval()
    other.load_state_dict(base.state_dict())
    assert torch.equal(other(images), wanted)


@pytest.mark.parametrize(
    "start", [0, -1, float("nan"), float("inf"), 1e300, pytest.param(10**400, id="huge"), "half", True]
)
def test_what_is_no_start_is_refused(start):
    net = FAMILIES["cifar resnet20"]()
    with pytest.raises(StepSizeError, match="start must be paper, identity or a positive number"):
        timestepper.attach(net, start=start)
    assert not timestepper.is_attached(net)


@pytest.mark.parametrize("kind", ["fixed(0.1)", "scalar(0)", "channel(0.1)", "depth(1)"])
def test_a_kind_with_a_value_of_its_own_takes_no_start(kind):
    with pytest.raises(StepSizeError, match="has a start of its own; leave start= out"):
        timestepper.attach(FAMILIES["cifar resnet20"](), kind, start="identity")


def test_a_first_step_of_zero_is_refused_and_nothing_is_left_on_the_network():
    class Zero(timestepper.controllers.Controller):
        reads_weights = False

        def forward(self, descriptors):
            return torch.zeros(self.shape.sites, self.shape.channels)

    net = FAMILIES["cifar resnet20"]()
    kinds = [type(module) for module in net.modules()]
    with pytest.raises(StepSizeError, match="start= divides by the first step sizes, and one is 0"):
        timestepper.attach(net, Zero, start="identity")
    assert [type(module) for module in net.modules()] == kinds
    assert "controllers" not in dict(net.named_children())


@pytest.mark.parametrize("start", [None, [1], torch.tensor(0.5), True])
def test_a_start_that_is_no_number_is_refused(start):
    with pytest.raises(StepSizeError, match="start must be paper, identity or a positive number"):
        timestepper.attach(FAMILIES["cifar resnet20"](), start=start)


def trained():
    """A network whose norms' weights differ, as they do after the first update."""
    net = timm.create_model("convnext_atto", num_classes=10)
    with torch.no_grad():
        net.stem[1].weight[0] += 0.01
    return net


def test_a_trained_network_that_would_not_compute_what_it_did_is_told_of(tmp_path):
    told = r"ConvNeXt looks trained \(the weights of stem\.1 differ\), and with {} .* attach\(net, {}\)"
    with pytest.warns(UserWarning, match=told.format("lstm", 'start="identity"')) as warned:
        net = timestepper.attach(trained())
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(UserWarning, match=told.format(r"channel\(0\.1\)", r'"channel\(1\)"')):
        timestepper.attach(trained(), "channel(0.1)")
    path = timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.load_controllers(trained(), path)
        timestepper.attach(trained(), start="identity")
        timestepper.attach(trained(), "channel(1)")
        timestepper.attach(timm.create_model("convnext_atto", num_classes=10))
        for make in FAMILIES.values():
            timestepper.attach(make())


def test_a_trained_network_whose_norms_are_frozen_is_told_of_too():
    """As torchvision's detectors are by default: their norms' weights are buffers."""
    net = torchvision.models.resnet18(norm_layer=torchvision.ops.FrozenBatchNorm2d)
    with torch.no_grad():
        net.bn1.weight[0] += 0.01
    with pytest.warns(UserWarning, match=r"ResNet looks trained \(the weights of bn1 differ\)"):
        timestepper.attach(net)


class LayerNormLinear(nn.Linear):
    """Named as NVIDIA's is: a norm and a matrix, whose weight is the matrix."""


def test_a_matrix_that_is_called_norm_is_no_sign_of_training():
    net = timm.create_model("convnext_atto", num_classes=10)
    net.head.fc = LayerNormLinear(net.num_features, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.attach(net)


def test_controllers_are_loaded_without_a_touch_on_the_filters_of_warnings(tmp_path, monkeypatch):
    """They are those of all threads: two that load at once would leave the warning of attach switched off for good."""
    path = timestepper.save_controllers(timestepper.attach(trained(), start="identity"), tmp_path / "steps.safetensors")
    before, seen = [*warnings.filters], []

    def attach(*args, **options):
        seen.append([*warnings.filters])
        return timestepper.attach(*args, **options)

    monkeypatch.setattr(timestepper.saving, "attach", attach)
    timestepper.load_controllers(trained(), path)
    assert seen == [before]


def test_plain_weights_that_are_loaded_after_attach_are_no_identity_and_said_to_be_none():
    """The first step sizes were computed from others; the same of a kind that reads no weights is one."""
    trained = torchvision.models.resnet18(num_classes=3).state_dict()
    head = {name: value for name, value in trained.items() if name.startswith("fc.")}
    net = timestepper.attach(torchvision.models.resnet18(num_classes=3), start="identity")
    with pytest.warns(UserWarning, match=r"first step sizes from others: .*; load first, then attach") as told:
        net.load_state_dict(trained, strict=False)
    assert len(told) == 1
    free = timestepper.attach(torchvision.models.resnet18(num_classes=3), "independent", start="identity")
    first = timestepper.attach(torchvision.models.resnet18(num_classes=3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.load_state_dict(head, strict=False)
        net.load_state_dict(net.state_dict())
        free.load_state_dict(trained, strict=False)
        first.load_state_dict(trained, strict=False)
    assert all((dt == 1).all() for dt in timestepper.step_sizes(free).values())
    assert not all((dt == 1).all() for dt in timestepper.step_sizes(net).values())
