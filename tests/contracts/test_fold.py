"""Folding is exact, and folding is needed: folded equals attached, and differs from the base without step sizes."""

import copy

import pytest
import torch
from families import FAMILIES, KINDS
from training import batch, train

import timestepper
from timestepper.adapters import create_model


def check_fold(model, kind, pixels, classes, tolerance):
    fresh = copy.deepcopy(model)
    net = timestepper.attach(model, kind)
    before = timestepper.step_sizes(net)
    train(net, pixels=pixels, classes=classes).eval()
    moved = max((after - before[stage]).abs().max() for stage, after in timestepper.step_sizes(net).items())
    assert moved > 0.01 or kind.startswith("fixed")
    images, _ = batch(pixels=pixels, classes=classes, seed=9)
    with torch.no_grad():
        attached, plain = net(images), timestepper.fold(net)
        folded, unstepped = plain(images), timestepper.detach(net)(images)
        fresh.load_state_dict(plain.state_dict(), strict=True)
        loaded = fresh.eval()(images)
    scale = attached.abs().max()
    assert (attached - folded).abs().max() <= tolerance * scale
    assert torch.equal(folded, loaded)
    assert type(plain) is type(model)
    assert list(plain.state_dict()) == list(model.state_dict())
    return (attached - unstepped).abs().max() / scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_folded_equals_attached_and_not_the_base(family, kind):
    torch.manual_seed(0)
    gated = "seresnet" in family
    difference = check_fold(FAMILIES[family](), kind, pixels=32, classes=5, tolerance=1e-5 if gated else 0.0)
    # Batch norm behind every consumer undoes the step size of DenseNet and CliqueNet, all but its eps.
    assert difference > (1e-6 if family in ("densenet", "cliquenet") else 1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "timm/resnet18",
        "timm/resnet34",
        "timm/resnet50",
        "timm/resnet101",
        "timm/resnext50_32x4d",
        "timm/resnext101_32x4d",
        "timm/seresnet50",
        "timm/seresnet101",
        "torchvision/resnet18",
        "torchvision/resnet50",
        "torchvision/resnext50_32x4d",
        "cifar/resnet56",
        "cifar/densenet40",
        "cifar/cliquenet",
    ],
)
def test_real_networks_fold_exactly(name):
    torch.manual_seed(0)
    difference = check_fold(create_model(name), "lstm", pixels=32, classes=10, tolerance="seresnet" in name and 1e-5)
    assert difference > (1e-6 if name in ("cifar/densenet40", "cifar/cliquenet") else 1e-4)


@pytest.mark.parametrize("family", ["densenet", "cliquenet"])
def test_the_function_of_concatenating_networks_hardly_depends_on_the_step(family):
    """Every consumer of a new feature starts with batch norm, which undoes a per-channel scale in training mode."""
    torch.manual_seed(0)
    model = FAMILIES[family]()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-12
    model = model.double().train()
    images = batch(size=8)[0].double()
    plain = model(images)
    stepped = timestepper.attach(model, "fixed(0.1)")(images)
    assert (stepped - plain).abs().max() < 1e-6 * plain.abs().max()
