"""Folding is exact, and folding is needed: folded equals attached, and differs from the base without step sizes."""

import copy
import warnings

import pytest
import timm
import torch
from families import FAMILIES, KINDS
from torch import nn
from training import batch, bits, fits_its_fold, plain, same, small, train

import timestepper
from timestepper.adapters import create_model
from timestepper.errors import NonFiniteError, NotAttachedError, UnsupportedSiteError, WrappedModelError


def check_fold(model, kind, pixels, classes, tolerance):
    fresh = copy.deepcopy(model)
    net = timestepper.attach(model, kind)
    before = timestepper.step_sizes(net)
    train(net, pixels=pixels, classes=classes).eval()
    moved = max((after - before[stage]).abs().max() for stage, after in timestepper.step_sizes(net).items())
    assert moved > 0.01 or kind.startswith("fixed")
    images, _ = batch(pixels=pixels, classes=classes, seed=9)
    with torch.no_grad():
        attached, folded = net(images), timestepper.fold(net)
        fresh.load_state_dict(folded.state_dict(), strict=True)
        logits, loaded = folded(images), fresh.eval()(images)
        unstepped = timestepper.detach(net)(images)
    scale = attached.abs().max()
    assert (attached - logits).abs().max() <= tolerance * scale
    assert torch.equal(logits, loaded)
    assert [type(module) for module in folded.modules()] == [type(module) for module in fresh.modules()]
    assert list(folded.state_dict()) == list(fresh.state_dict())
    return (attached - unstepped).abs().max() / scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_folded_equals_attached_and_not_the_base(family, kind):
    gated = "seresnet" in family
    difference = check_fold(FAMILIES[family](), kind, pixels=32, classes=5, tolerance=1e-5 if gated else 0.0)
    # Batch norm behind every consumer undoes the step size of DenseNet and CliqueNet, all but its eps.
    assert difference > (1e-6 if family in ("densenet", "cliquenet") else 1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "timm/resnet18",
        "timm/resnet50",
        "timm/resnext50_32x4d",
        "timm/seresnet50",
        "torchvision/resnet18",
        "torchvision/resnext50_32x4d",
        "cifar/resnet56",
        "cifar/densenet40",
        "cifar/cliquenet",
    ],
)
def test_real_networks_fold_exactly(name):
    difference = check_fold(create_model(name), "lstm", pixels=32, classes=10, tolerance="seresnet" in name and 1e-5)
    assert difference > (1e-6 if name in ("cifar/densenet40", "cifar/cliquenet") else 1e-4)


def test_folding_in_train_mode_changes_no_statistics_and_keeps_the_mode():
    net = small().train()
    before = bits(net)
    folded = timestepper.fold(net)
    assert folded.training
    assert same(bits(net), before)
    images, _ = batch()
    assert torch.equal(folded.eval()(images), net.eval()(images))


def test_folding_in_half_precision_multiplies_in_float32_and_casts_once():
    net = small()
    exact = timestepper.fold(net).state_dict()
    low = copy.deepcopy(net).bfloat16()
    with pytest.warns(UserWarning, match=r"rounded to bfloat16: each weight changes by at most 3\.9e-03") as caught:
        folded = timestepper.fold(low).eval()
    assert [each.filename for each in caught] == [__file__]
    expected = {key: value.bfloat16() for key, value in net.state_dict().items()}
    step = timestepper.step_sizes(low)["layer1"]
    assert step.dtype == torch.float32
    weight = (expected["layer1.0.bn2.weight"].float() * step[0]).bfloat16()
    assert torch.equal(folded.layer1[0].bn2.weight, weight)
    assert not torch.equal(folded.layer1[0].bn2.weight.float(), exact["layer1.0.bn2.weight"])
    images = batch()[0].bfloat16()
    assert torch.equal(folded(images), low.eval()(images))


def test_folding_in_float32_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.fold(small())


@pytest.mark.parametrize("name", ["layer2.0.conv1.weight", "linear.bias", "controllers.layer1.output_bias"])
def test_a_nan_at_fold_time_is_named_and_nothing_is_changed(name):
    net = small()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] = float("nan")
    before = {key: value.nan_to_num() for key, value in bits(net).items()}
    named = "layer1.0.bn2.weight" if "controllers" in name else name
    with pytest.raises(NonFiniteError, match=f"cannot fold: .*{named}"):
        timestepper.fold(net)
    assert same({key: value.nan_to_num() for key, value in net.state_dict().items()}, before)


def test_a_mask_of_infinities_folds_and_one_of_nan_does_not():
    net = small()
    net.register_buffer("mask", torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf))
    assert timestepper.fold(net).mask.isinf().any()
    net.mask.fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="mask holds NaN"):
        timestepper.fold(net)


@pytest.fixture
def frozen():
    """Batch norms whose parameters are buffers."""
    net = timestepper.attach(FAMILIES["timm resnet18"]())
    timm.utils.freeze(net)
    return net


def test_a_frozen_batch_norm_that_is_infinite_does_not_fold(frozen):
    frozen.layer1[0].bn2.weight.fill_(torch.inf)  # a buffer, and no mask
    with pytest.raises(NonFiniteError, match=r"layer1\.0\.bn2\.weight holds NaN or infinity"):
        timestepper.fold(frozen)


def test_a_frozen_batch_norm_that_a_controller_makes_nan_does_not_fold(frozen):
    for parameter in frozen.controllers.parameters():
        nn.init.constant_(parameter, torch.nan)
    with pytest.raises(NonFiniteError, match=r"bn2\.weight holds NaN"):
        timestepper.fold(frozen)


def test_parameters_that_were_tied_since_attach_do_not_fold():
    """Attached, each layer runs with its own step size; one parameter cannot hold both."""
    net = small()
    net.layer1[0].bn1.weight = net.layer1[0].bn2.weight
    assert net(batch()[0]).isfinite().all()
    for save in (timestepper.fold, lambda net: timestepper.save_folded(net, "never.safetensors")):
        with pytest.raises(UnsupportedSiteError, match=r"layer1\.0\.bn2\.weight is shared with another layer"):
            save(net)


def test_folding_a_plain_network_is_refused():
    for call in (timestepper.fold, timestepper.detach, timestepper.step_sizes):
        with pytest.raises(NotAttachedError, match=r"CifarResNet has no controllers; call timestepper.attach first"):
            call(plain())


def test_weight_decay_acts_differently_after_folding():
    """From the same function, one step of pure decay parts an attached and a folded network: decay pulls a step size
    towards 0.5 and a folded weight towards 0. So training on from a folded network is a choice, never silent."""
    net = train(timestepper.attach(plain(), "independent")).eval()
    images, _ = batch()
    folded = timestepper.fold(net)
    assert torch.equal(net(images), folded(images))
    for model in (net, folded):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=5.0).step()
    difference = (net(images) - folded(images)).abs().max() / net(images).abs().max()
    assert difference > 1e-3


def test_a_fold_runs_no_part_of_the_attached_network():
    """A function is not copied with the module that it holds: one that torch has made of a forward is left out."""
    images, _ = batch()
    net = small().eval()
    expected = timestepper.fold(net)(images)
    for part in (net, net.layer1, net.layer2[0].bn2):
        part.forward = torch.compile(part.forward, backend="eager")
    folded = timestepper.fold(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert torch.equal(folded(images), expected)
    assert not any("forward" in vars(part) for part in folded.modules())


def test_a_patched_part_does_not_fold():
    net = small().eval()
    old = net.layer1.forward
    net.layer1.forward = lambda x: old(x) + 1
    with pytest.raises(
        WrappedModelError, match=r"layer1\.forward is a function that holds .*\(del net\.layer1\.forward\)"
    ):
        timestepper.fold(net)
    del net.layer1.forward
    assert fits_its_fold(net)
