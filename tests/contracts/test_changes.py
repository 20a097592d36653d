"""What is done to a network after attach: norms of another kind are taken in, what would run unstepped is refused."""

import copy

import accelerate
import pytest
import timm
import torch
import torch.nn.utils.prune
from families import FAMILIES
from torch import nn
from torchvision.ops.misc import FrozenBatchNorm2d
from training import batch, bits, fits_its_fold, gradients, plain, same, small, train

import timestepper
from timestepper.errors import MismatchError, UnsupportedSiteError, WrappedModelError


def test_synchronised_norms_before_and_after_attach():
    after = nn.SyncBatchNorm.convert_sync_batchnorm(small())
    before = timestepper.attach(nn.SyncBatchNorm.convert_sync_batchnorm(plain()))
    before.load_state_dict(small().state_dict())
    for net in (after, before):
        norms = [module for module in net.modules() if "BatchNorm" in type(module).__name__]
        assert all(isinstance(norm, nn.SyncBatchNorm) for norm in norms)
        assert len(norms) == 7
        assert fits_its_fold(net)
        assert {type(m) for m in timestepper.fold(net).modules() if "BatchNorm" in type(m).__name__} == {
            nn.SyncBatchNorm
        }
        assert same(gradients(net.eval()), gradients(small().eval()))


def test_norms_that_timm_freezes_and_thaws_are_taken_in():
    net = train(timestepper.attach(FAMILIES["timm resnet18"]())).eval()
    expected = net(batch()[0])
    timm.utils.freeze(net, ["layer1"])
    torch.testing.assert_close(net(batch()[0]), expected)
    assert fits_its_fold(net)
    assert net.layer1[0].bn2.weight in set(net.buffers())
    timm.utils.unfreeze(net, ["layer1"])
    torch.testing.assert_close(net.eval()(batch()[0]), expected)
    assert gradients(net)["layer1.0.bn2.weight"].any()
    assert type(timestepper.detach(net).layer1[0].bn2) is nn.BatchNorm2d


@pytest.mark.parametrize("change", [timm.layers.freeze_batch_norm_2d, timm.layers.convert_sync_batchnorm])
def test_norms_of_timm_that_hold_an_activation_are_taken_in(change):
    torch.manual_seed(0)
    net = timestepper.attach(timm.create_model("efficientnet_b0", num_classes=5)).eval()
    expected = net(batch()[0])
    change(net)
    torch.testing.assert_close(net(batch()[0]), expected)
    assert fits_its_fold(net)


def test_a_layer_whose_forward_was_patched_before_attach_is_refused():
    net = plain()
    before = bits(net)
    patched = net.layer1[0].bn2
    patched.forward = lambda images: type(patched).forward(patched, images)
    with pytest.raises(WrappedModelError, match=r"layer1\.0\.bn2 has a forward of its own"):
        timestepper.attach(net)
    assert same(bits(net), before)


def test_a_norm_put_in_by_hand_is_taken_in():
    net = small()
    frozen = FrozenBatchNorm2d(8)
    frozen.load_state_dict({key: value for key, value in net.layer1[0].bn2.state_dict().items() if "num" not in key})
    expected = net.eval()(batch()[0])
    net.layer1[0].bn2 = frozen
    torch.testing.assert_close(net(batch()[0]), expected)
    assert fits_its_fold(net)
    assert type(timestepper.detach(net).layer1[0].bn2) is FrozenBatchNorm2d


def test_a_new_part_that_describes_a_site_is_read_from_then_on():
    """A step size that still read the old part's weights would not come back from a state dict."""

    def network():
        torch.manual_seed(0)
        vit = timm.create_model(
            "vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, init_values=1.0
        )
        return timestepper.attach(vit, descriptor="visible").eval()

    net, other = network(), network()
    net(batch()[0])
    for block in net.blocks:
        block.mlp = timm.layers.Mlp(24, 96)
    found = net(batch()[0])
    other.load_state_dict(net.state_dict())
    assert torch.equal(found, other(batch()[0]))


class LowRank(nn.Module):
    """Around a layer, whose weight it does not show."""

    def __init__(self, base: nn.Conv2d):
        super().__init__()
        self.base, self.added = base, nn.Conv2d(base.in_channels, base.out_channels, 1, bias=False)

    def forward(self, x):
        return self.base(x) + self.added(x)


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize(
    ("replace", "told"),
    [
        (LowRank, r"layer1\.0\.conv1 is a LowRank, which has no weight for the controller to read; .*attach again"),
        (
            lambda conv: nn.Conv2d(conv.in_channels, conv.out_channels, 5, padding=2),
            r"layer1\.0\.conv1, layer1\.0\.conv2 have other shapes than at attach: .* 144 numbers, and now 272; .*",
        ),
    ],
)
def test_a_layer_that_the_controller_cannot_read_any_more_is_named(replace, told, fused):
    """The kernels know sizes and places alone: they would read the numbers of another block, or beyond the last."""
    net = small()
    net.controllers.fused = fused
    net.layer1[0].conv1 = replace(net.layer1[0].conv1)
    with pytest.raises(MismatchError, match=told):
        net(batch()[0])


@pytest.mark.parametrize("fused", [None, True])
def test_a_stepped_layer_that_lost_channels_is_named(fused):
    """As where channels are cut out after attach: the kernels would go on with the step sizes of others."""
    net = timestepper.attach(plain(), "lstm", sites="layer1.*")
    net.controllers.fused = fused
    net.layer1[0].bn2.weight = nn.Parameter(torch.ones(5))
    with pytest.raises(MismatchError, match=r"layer1\.0\.bn2\.weight has another size since attach \(5 channels, 8 "):
        net(batch()[0])


@pytest.mark.parametrize(
    ("replacement", "name"),
    [(nn.Identity(), "Identity"), (nn.GroupNorm(2, 8), "GroupNorm"), (nn.BatchNorm2d(4), "BatchNorm2d")],
)
def test_a_last_layer_replaced_by_one_without_a_step_size_is_named(replacement, name):
    net = small()
    net.layer1[0].bn2 = replacement
    before = bits(net)
    for use in (
        lambda: net(batch()[0]),
        lambda: timestepper.fold(net),
        lambda: timestepper.frozen_steps(net).__enter__(),
    ):
        with pytest.raises(
            MismatchError, match=rf"layer1\.0\.bn2 was replaced by {name} since attach, which would run"
        ):
            use()
    assert same(bits(net), before)


def test_a_block_replaced_after_attach_is_named():
    net = small()
    net.layer2[0] = plain().layer2[0]
    with pytest.raises(MismatchError, match=r"layer2\.0 was replaced by BasicBlock since attach"):
        net(batch()[0])


def test_a_block_that_is_deleted_after_attach_is_named():
    net = small()
    del net.layer3[0]
    with pytest.raises(MismatchError, match=r"layer3\.0 was removed since attach"):
        net(batch()[0])


def test_detach_takes_step_sizes_off_what_has_moved_or_gone_too():
    """Torch's attention reads the weights of its last layer, so it is of another class itself while attached."""
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 3)
    timestepper.attach(net, example=torch.randn(2, 4, 16))
    every = list(net.modules())
    del net.layers[0]
    timestepper.detach(net)
    assert not any(hasattr(type(part), "_original") for part in every)
    net(torch.randn(2, 4, 16))


@pytest.mark.parametrize("path", ["layer1.0.bn2", "layer1.0", "layer1"])
def test_a_part_wrapped_by_something_of_the_user_s_is_named(path):
    net = small()
    parent, _, name = path.rpartition(".")
    setattr(net.get_submodule(parent), name, nn.ModuleDict({"wrapped": net.get_submodule(path)}))
    with pytest.raises(MismatchError, match=rf"{path} was wrapped in ModuleDict since attach, which hides its layers"):
        net(batch()[0])


class Logged(nn.Module):
    """A wrapper that shows what it wraps, as torch's own do."""

    def __init__(self, wrapped):
        super().__init__()
        self.wrapped = wrapped

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.wrapped, name)

    def forward(self, x):
        return self.wrapped(x)


def test_a_block_in_a_wrapper_that_shows_it_runs_and_folds():
    net = small().eval()
    expected = net(batch()[0])
    net.layer1[0] = Logged(net.layer1[0])
    assert torch.equal(net(batch()[0]), expected)
    assert torch.equal(timestepper.fold(net)(batch()[0]), expected)


def test_a_last_layer_that_is_pruned_later_is_noticed():
    net = small()
    torch.nn.utils.prune.identity(net.layer1[0].bn2, "weight")
    for use in (lambda: net(batch()[0]), lambda: timestepper.fold(net)):
        with pytest.raises(
            UnsupportedSiteError, match=r"layer1\.0\.bn2\.weight is computed from other parameters since"
        ):
            use()
    torch.nn.utils.prune.remove(net.layer1[0].bn2, "weight")
    assert fits_its_fold(net)


def test_a_convolution_that_the_controller_reads_and_that_is_pruned_later_is_noticed():
    net = small()
    torch.nn.utils.prune.random_unstructured(net.layer1[0].conv1, "weight", 0.5)
    with pytest.raises(UnsupportedSiteError, match=r"layer1\.0\.conv1\.weight is computed by a hook in every call"):
        net(batch()[0])
    torch.nn.utils.prune.remove(net.layer1[0].conv1, "weight")
    assert fits_its_fold(net)


def test_a_bias_that_is_taken_away_later_is_noticed():
    net = small()
    net.layer1[0].bn2.bias = None
    for use in (lambda: net(batch()[0]), lambda: net.layer1(torch.randn(2, 8, 4, 4))):
        with pytest.raises(UnsupportedSiteError, match=r"layer1\.0\.bn2\.bias was set to None since attach"):
            use()


def test_a_network_whose_weights_are_offloaded_is_told_to_fold_first():
    net = accelerate.cpu_offload(small(), torch.device("cpu"))
    with pytest.raises(WrappedModelError, match=r"conv1\.weight is offloaded .*; offload timestepper\.fold"):
        net(batch()[0])
    net = accelerate.cpu_offload(plain(), torch.device("cpu"))
    with pytest.raises(MismatchError, match=r"conv1\.weight is offloaded .*; load the network onto one device"):
        timestepper.discover(net, batch()[0])


def test_a_last_layer_parametrised_later_is_noticed():
    net = timestepper.attach(FAMILIES["densenet"]())
    torch.nn.utils.parametrizations.weight_norm(net.block1[0].conv)
    with pytest.raises(UnsupportedSiteError, match=r"block1\.0\.conv"):
        net(batch()[0])


def test_a_new_head_is_used():
    net = small().eval()
    net.linear = nn.Linear(32, 7)
    assert net(batch()[0]).shape == (4, 7)
    assert timestepper.fold(net).linear.out_features == 7


def test_a_head_that_timm_replaces_is_used():
    net = timestepper.attach(FAMILIES["timm resnet18"]()).eval()
    net.reset_classifier(7)
    assert net(batch()[0]).shape == (4, 7)
    assert torch.equal(timestepper.fold(net)(batch()[0]), net(batch()[0]))


def test_controllers_that_are_deleted_are_missed_and_can_be_taken_off():
    net = small()
    del net.controllers
    with pytest.raises(MismatchError, match=r"controllers were deleted; call timestepper\.detach\(net\)"):
        net(batch()[0])
    timestepper.detach(net)
    net(batch()[0])


def test_a_shallow_copy_is_refused():
    net = small()
    with pytest.raises(WrappedModelError, match=r"a shallow copy .* use copy\.deepcopy"):
        copy.copy(net)(batch()[0])


def test_what_is_folded_in_inference_mode_can_be_trained():
    net, (images, labels) = small(), batch()
    with torch.inference_mode():
        folded = timestepper.fold(net)
    nn.functional.cross_entropy(folded(images), labels).backward()
    assert all(parameter.grad is not None for parameter in folded.parameters())
