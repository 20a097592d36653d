"""timm's own training tools on an attached timm network."""

import pytest
import timm
import torch
from families import FAMILIES, SMALL
from timm.optim import create_optimizer_v2, param_groups_layer_decay
from timm.utils import CheckpointSaver, ModelEmaV3
from training import batch, bits, fits_its_fold, gradients, same, train

import timestepper


@pytest.fixture
def net():
    torch.manual_seed(0)
    return train(timestepper.attach(FAMILIES["timm resnet18"]()))


def test_layer_decay_keeps_the_network_s_groups_and_leaves_controllers_whole():
    model = FAMILIES["timm resnet18"]()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    before = {names[id(p)]: g["lr_scale"] for g in param_groups_layer_decay(model) for p in g["params"]}
    net = timestepper.attach(model)
    scales = {id(p): group["lr_scale"] for group in param_groups_layer_decay(net) for p in group["params"]}
    assert {name: scales[id(parameter)] for name, parameter in net.named_parameters() if name in before} == before
    assert {scales[id(parameter)] for parameter in timestepper.controller_parameters(net)} == {1.0}


@pytest.mark.parametrize("make", [FAMILIES["timm resnet18"], lambda: timm.create_model("test_vit")])
def test_controllers_that_want_no_weight_decay_have_none(make):
    """The first network has no list of its own, the second one has."""
    model = make()
    own = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()
    for kind, decayed in (("gain", False), ("two_fc", True)):
        net = timestepper.attach(model, kind)
        groups = create_optimizer_v2(net, opt="adamw", lr=0.1, weight_decay=0.05).param_groups
        decays = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
        matrices = [p for p in timestepper.controller_parameters(net) if p.dim() > 1]
        assert {decays[id(p)] for p in matrices} == {0.05 if decayed else 0.0}
        assert decays[id(next(p for p in timestepper.detach(net).parameters() if p.dim() > 3))] == 0.05
    assert set(getattr(model, "no_weight_decay", set)()) == own


def no_weight_decay(self, more=()):
    return {"bn1.weight", *more} if more is not None else None


OTHERS = {
    "method": (no_weight_decay, lambda net: net.no_weight_decay(("fc.bias",)), {"bn1.weight", "fc.bias"}),
    "no names": (no_weight_decay, lambda net: net.no_weight_decay(None), set()),
    "property": (property(no_weight_decay), lambda net: net.no_weight_decay, {"bn1.weight"}),
    "set": ({"bn1.weight"}, lambda net: net.no_weight_decay, {"bn1.weight"}),
    "staticmethod": (staticmethod(lambda: {"bn1.weight"}), lambda net: net.no_weight_decay(), {"bn1.weight"}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_network_that_has_such_a_list_in_another_form_keeps_it(name):
    written, read, expected = OTHERS[name]
    model = timm.create_model("resnet10t", num_classes=3)
    model.__class__ = type("Own", (type(model),), {"no_weight_decay": written})
    assert {key for key in read(timestepper.attach(model, "gain")) if "controllers" not in key} == expected


def test_its_optimiser_trains_everything(net):
    optimiser = create_optimizer_v2(net, opt="sgd", lr=0.1, weight_decay=0.01, layer_decay=0.75)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(net.parameters()))
    before = bits(net)
    gradients(net)
    optimiser.step()
    moved = [name for name, value in net.named_parameters() if not torch.equal(value, before[name])]
    assert {name.split(".")[0] for name in moved} >= {"controllers", "conv1", "layer1", "layer4", "fc"}
    assert fits_its_fold(net)


def test_its_moving_average_folds(net):
    average = ModelEmaV3(net, decay=0.5)
    before = bits(net)
    train(net, steps=1)
    average.update(net)
    expected = {
        name: (value + before[name]) / 2 if value.is_floating_point() else value for name, value in bits(net).items()
    }
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name], check_dtype=False, msg=name)
    assert fits_its_fold(average.module)
    assert torch.equal(timestepper.fold(average).eval()(batch()[0]), average.module.eval()(batch()[0]))


def test_its_checkpoints_go_on_where_they_stopped(net, tmp_path):
    optimiser = create_optimizer_v2(net, opt="adamw", lr=0.01)
    average = ModelEmaV3(net, decay=0.5)
    gradients(net)
    optimiser.step()
    saver = CheckpointSaver(net, optimiser, model_ema=average, checkpoint_dir=tmp_path, recovery_dir=tmp_path)
    saver.save_checkpoint(0, metric=1.0)
    twin = timestepper.attach(FAMILIES["timm resnet18"]())
    again = create_optimizer_v2(twin, opt="adamw", lr=0.01)
    timm.models.resume_checkpoint(twin, str(tmp_path / "last.pth.tar"), again)
    for model, each in ((net, optimiser), (twin, again)):
        model.load_state_dict(bits(model))
        gradients(model.eval())
        each.step()
    assert same(bits(twin), bits(net))
    timm.models.load_checkpoint(twin, str(tmp_path / "last.pth.tar"), use_ema=True)
    assert same(bits(twin), bits(average.module))


def test_its_helpers_see_the_network(net):
    assert net.get_classifier() is net.fc
    assert timm.utils.unwrap_model(net) is net
    assert net.group_matcher() == FAMILIES["timm resnet18"]().group_matcher()
    net.reset_classifier(0)
    features = net.eval()(batch()[0])
    assert features.shape == (4, 64)
    assert torch.equal(features, timestepper.fold(net)(batch()[0]))


def test_attach_to_features_only_and_pruned_intermediates():
    torch.manual_seed(0)
    net = timestepper.attach(timm.create_model("resnet18", features_only=True, out_indices=(1, 3), **SMALL)).eval()
    with torch.no_grad():
        found, expected = net(batch()[0]), timestepper.fold(net)(batch()[0])
    assert [tuple(map(torch.equal, (one,), (other,))) for one, other in zip(found, expected, strict=True)] == [
        (True,)
    ] * 2
    assert net.feature_info.channels() == timestepper.fold(net).feature_info.channels()
