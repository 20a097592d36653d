"""What an ordinary training loop does to a network, it can do to an attached one."""

import pytest
import timm
import torch
from families import FAMILIES, SMALL
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import batch, bits, fits_its_fold, gradients, plain, same, small, train

import timestepper
from timestepper.api import find_steps
from timestepper.models import CifarResNet


@pytest.mark.parametrize("kind", ["lstm", "two_fc", "independent"])
def test_every_controller_parameter_gets_a_gradient(kind):
    net = timestepper.attach(FAMILIES["torchvision resnet50"](), kind)  # has stages of one site
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


def test_gradient_accumulation_equals_one_large_batch():
    net = small().eval()  # eval: batch statistics would differ between halves
    images, labels = batch()
    whole = gradients(net)
    net.zero_grad()
    for half in (slice(0, 2), slice(2, 4)):
        (F.cross_entropy(net(images[half]), labels[half]) / 2).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-3, atol=1e-6, msg=name)


def test_one_backward_pass_for_two_forwards():
    net = small().eval()
    images, labels = batch()
    whole = gradients(net)
    net.zero_grad()
    halves = [F.cross_entropy(net(images[half]), labels[half]) / 2 for half in (slice(0, 2), slice(2, 4))]
    sum(halves).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, whole[name], rtol=1e-3, atol=1e-6, msg=name)


def test_autocast_leaves_the_controller_in_float32():
    net = small().eval()
    images, _ = batch()
    exact, parameters = timestepper.step_sizes(net), find_steps(net).effective_parameters()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert same(timestepper.step_sizes(net), exact)
        assert same(find_steps(net).effective_parameters(), parameters)
        logits = net(images)
        assert torch.equal(logits, timestepper.fold(net)(images))
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    assert logits.dtype == torch.bfloat16


def test_exponential_moving_average():
    net = small()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    images, _ = batch()
    average.update_parameters(net)
    train(net)
    average.update_parameters(net)
    for (name, mean), first, last in zip(
        average.module.named_parameters(), small().parameters(), net.parameters(), strict=True
    ):
        torch.testing.assert_close(mean, (first + last) / 2, msg=name)
    assert torch.equal(timestepper.fold(average).eval()(images), average.eval()(images))


def test_a_buffer_that_the_network_does_not_save_is_not_saved():
    model = plain()
    model.register_buffer("seen", torch.zeros(1), persistent=False)
    net = timestepper.attach(model)
    assert "seen" in dict(net.named_buffers())
    assert "seen" not in net.state_dict()


def test_the_mode_reaches_all_of_the_network():
    """timm's dropout asks the network itself, not a layer, whether it is training."""
    images, _ = batch()
    net = timestepper.attach(timm.create_model("resnet18", **SMALL, drop_rate=0.5).eval())
    assert not net.controllers.training
    assert torch.equal(net(images), net(images))
    net.train()
    assert net.controllers.training
    assert not torch.equal(net(images), net(images))


def test_a_way_of_its_own_to_switch_modes_is_the_network_s():
    class Frozen(CifarResNet):
        def train(self, mode=True):
            super().train(mode)
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
            return self

    net = timestepper.attach(Frozen(8, num_classes=5, width=8)).train()
    before = bits(net)
    net(batch()[0])
    assert same(bits(net), before)
    assert net.layer1.training


def test_inputs_may_be_given_by_name():
    net = small().eval()
    images, _ = batch()
    assert torch.equal(net(x=images), net(images))


def test_step_sizes_to_look_at_hold_on_to_no_graph():
    assert not any(dt.requires_grad for dt in timestepper.step_sizes(small()).values())


@pytest.mark.parametrize("family", ["cifar resnet20", "densenet", "timm seresnet50"])
def test_channels_last(family):
    net = train(timestepper.attach(FAMILIES[family]())).eval()
    images, _ = batch()
    reference = net(images)
    net = net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(images.to(memory_format=torch.channels_last)), reference, rtol=1e-3, atol=1e-4)
    effective = find_steps(net).effective_parameters().values()
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in effective if value.dim() == 4)


def moved(net: nn.Module) -> set[str]:
    before = bits(net)
    train(net)
    return {name for name, parameter in net.named_parameters() if not torch.equal(parameter, before[name])}


def test_a_frozen_base_trains_the_controllers_alone():
    found = moved(timestepper.freeze_base(small()))
    assert {name.split(".")[1] for name in found} == {"layer1", "layer2", "layer3"}
    assert all(name.startswith("controllers.") for name in found)


def test_blocks_under_no_grad_are_read_by_the_controller_and_only_requires_grad_freezes_them():
    def trained(frozen, under_no_grad):
        net = timestepper.attach(plain(depth=14))
        for path in frozen:
            net.get_submodule(path).requires_grad_(False)
        part = net.get_submodule(under_no_grad)
        part.forward = torch.no_grad()(part.forward)
        net(batch()[0]).sum().backward()
        return net

    first = trained([], "layer1.0").layer1[0]
    assert first.conv1.weight.grad.any()
    assert first.bn2.weight.grad is None  # which no controller reads
    assert trained([], "layer1").layer1[0].conv1.weight.grad.eq(0).all()
    frozen = trained(["layer1.0"], "layer1.0")
    assert all(parameter.grad is None for parameter in frozen.layer1[0].parameters())
    assert frozen.layer1[1].conv1.weight.grad.any()


def test_frozen_controllers_train_the_network_alone():
    net = small()
    net.controllers.requires_grad_(False)
    names = {name for name, _ in net.named_parameters() if not name.startswith("controllers.")}
    assert moved(net) == names


def test_descriptor_gradient_can_be_switched_off():
    """Then a convolution gets the gradient that it would get with the same step sizes held constant."""
    net = timestepper.attach(plain(), descriptor_gradient=False)
    nn.init.normal_(net.controllers["layer1"].input_weight, std=3)
    stopped = gradients(net)["layer1.0.conv1.weight"]
    constant = gradients(timestepper.fold(net))["layer1.0.conv1.weight"]
    torch.testing.assert_close(stopped, constant, rtol=1e-4, atol=1e-7)
    state = net.state_dict()
    flowing = timestepper.attach(timestepper.detach(net))
    flowing.load_state_dict(state)
    assert (gradients(flowing)["layer1.0.conv1.weight"] - stopped).abs().max() > 1e-6


def test_moving_to_another_precision_moves_everything():
    net = small().eval().double()
    images = batch()[0].double()
    assert net(images).dtype == torch.float64
    assert torch.equal(net(images), timestepper.fold(net)(images))


def test_a_parametrised_convolution_describes_its_branch():
    model = plain()
    nn.utils.parametrizations.weight_norm(model.layer1[0].conv1)
    net = train(timestepper.attach(model))
    assert fits_its_fold(net)
    timestepper.summary(net, (3, 32, 32))


def test_runs_on_the_meta_device():
    """Shapes without memory; then the usual way to fill a network that was made there."""
    with torch.device("meta"):
        net = timestepper.attach(plain()).eval()
    images, _ = batch()
    assert net(images.to("meta")).shape == (4, 5)
    net.to_empty(device="cpu").load_state_dict(small().state_dict())
    assert torch.equal(net(images), small().eval()(images))


def test_a_plain_checkpoint_loads_into_an_attached_network():
    net, other = small(), train(plain())
    missing, unexpected = net.load_state_dict(other.state_dict(), strict=False)
    assert all(name.startswith("controllers.") for name in missing)
    assert not unexpected
    assert torch.equal(net.layer1[0].bn2.weight, other.layer1[0].bn2.weight)
    assert fits_its_fold(net)
