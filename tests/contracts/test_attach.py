"""Attach in place and detach again: what is refused, by name, and that a network is left as it was."""

import functools

import pytest
import timm
import torch
import torch.distributed as dist
import torch.nn.utils.prune
import torchvision
from families import FAMILIES
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from training import batch, bits, gradients, plain, same, small

import timestepper
from timestepper import reparam
from timestepper.errors import (
    AlreadyAttachedError,
    MismatchError,
    NoSitesError,
    NotAttachedError,
    StepSizeError,
    UnknownNameError,
    UnsupportedSiteError,
    WrappedModelError,
)
from timestepper.models import CifarResNet


def everything(model: nn.Module) -> list:
    """What can be seen of a network, its values aside: classes, attributes, children, parameters and hooks."""
    own = (
        "_modules",
        "_parameters",
        "_buffers",
        "_forward_hooks",
        "_forward_pre_hooks",
        "_forward_hooks_always_called",
    )
    return [
        (id(module), type(module), list(vars(module)), *(list(getattr(module, name).items()) for name in own))
        for module in model.modules()
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_attach_keeps_the_network_and_detach_leaves_nothing_behind(family):
    model = FAMILIES[family]()
    kind, before, found = type(model), bits(model), everything(model)
    net = timestepper.attach(model)
    assert net is model
    assert isinstance(net, kind)
    assert next(net.children()) is net.controllers
    assert [key for key in net.state_dict() if not key.startswith("controllers.")] == list(before)
    net.eval()(batch()[0])
    assert timestepper.detach(net) is model
    assert same(bits(model), before)
    assert everything(model) == found
    timestepper.attach(model, "two_fc")  # and it can be attached to again


def test_attaching_twice_is_refused():
    net = small()
    with pytest.raises(AlreadyAttachedError, match=r"has controllers already \(lstm\); call timestepper.detach"):
        timestepper.attach(net)
    with pytest.raises(AlreadyAttachedError, match="0 has controllers already"):
        timestepper.attach(nn.Sequential(net))


def test_attaching_to_a_part_of_an_attached_network_is_refused():
    """It would run with two step sizes, and detach of either would break the other."""
    net = small()
    before, expected = bits(net), net.eval()(batch()[0])
    with pytest.raises(AlreadyAttachedError, match=r"0\.bn2 is a part or a copy of another attached network"):
        timestepper.attach(net.layer1)
    assert same(bits(net), before)
    assert torch.equal(net(batch()[0]), expected)


def test_a_part_with_our_name_is_refused():
    model = plain()
    model.controllers = nn.Linear(1, 1)
    with pytest.raises(AlreadyAttachedError, match="CifarResNet has a part or attribute named 'controllers'; rename"):
        timestepper.attach(model)


def test_attaching_to_a_compiled_network_is_refused():
    with pytest.raises(WrappedModelError, match="wrapped in OptimizedModule; attach first, then wrap"):
        timestepper.attach(torch.compile(plain()))
    model = plain()
    model.compile()
    with pytest.raises(WrappedModelError, match="CifarResNet is compiled; attach first, then compile"):
        timestepper.attach(model)
    model = plain()
    model.layer1.forward = torch.compile(model.layer1.forward)
    with pytest.raises(WrappedModelError, match="layer1 is compiled; attach first, then compile"):
        timestepper.attach(model)


def test_attaching_to_a_network_with_a_patched_part_is_refused():
    """A copy to look at would run the network's own part, in another precision and unseen."""
    model = plain()
    old = model.layer1.forward
    model.layer1.forward = lambda x: old(x) + 1
    with pytest.raises(WrappedModelError, match=r"layer1 has a forward of its own, .*; attach first, and patch"):
        timestepper.attach(model)
    model.layer1.forward = lambda x: x  # holds nothing
    timestepper.attach(model)


kept: list[object] = []


def test_attaching_to_a_wrapped_network_is_refused(unused_port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{unused_port}", rank=0, world_size=1)
    try:
        with pytest.raises(WrappedModelError, match="wrapped in DistributedDataParallel; attach first"):
            timestepper.attach(DistributedDataParallel(plain()))
        model = plain()
        fully_shard(model.layer1[0], mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(WrappedModelError, match=r"layer1\.0 is wrapped in FSDPModule; attach first"):
            timestepper.attach(model)
        model, net = plain(), small()
        for norm in (model.layer1[0].bn2, net.layer1[0].bn2):  # as parallelize_module does
            norm.weight = nn.Parameter(distribute_tensor(norm.weight, init_device_mesh("cpu", (1,)), [Shard(0)]))
        block, features = net.layer1[0], torch.ones(1, 8, 32, 32)
        for use in (lambda: timestepper.attach(model), lambda: net(batch()[0]), lambda: block(features)):
            with pytest.raises(WrappedModelError, match=r"layer1\.0\.bn2\.weight is split over several processes"):
                use()
        wrapped = DistributedDataParallel(plain())
        timestepper.attach(wrapped.module)
        with pytest.raises(WrappedModelError, match=r"put around the network before attach.*; attach first"):
            wrapped(batch()[0])
        teacher = small()
        wrapped = DistributedDataParallel(small())
        wrapped.module.layer1.register_forward_hook(lambda *_: (teacher(batch()[0]), None)[1])  # is none of its own
        assert len(wrapped(batch()[0])) == len(batch()[0])
    finally:
        kept.append(dist.group.WORLD)  # the end of one can hang, see engine/distributed.py
        dist.destroy_process_group()
    with pytest.raises(WrappedModelError, match="wrapped in DataParallel; attach first"):
        timestepper.attach(nn.DataParallel(plain()))
    with pytest.raises(WrappedModelError, match="wrapped in AveragedModel; attach first"):
        timestepper.attach(AveragedModel(plain()))


def test_a_network_without_sites_is_refused_once_there_is_something_to_look_at():
    net = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())
    with pytest.raises(MismatchError, match="Sequential says nothing of its input; pass example="):
        timestepper.attach(net)
    said = "Sequential has no residual branch: its forward adds no two features; docs/discovery.md says"
    with pytest.raises(NoSitesError, match=said):
        timestepper.attach(net, example=torch.randn(1, 3, 4, 4))


def test_a_name_in_place_of_a_network_is_refused():
    with pytest.raises(NoSitesError, match=r"a network is needed, not 'resnet50'; .*create_model"):
        timestepper.attach("resnet50")


class ActivatedNorm(nn.BatchNorm2d):
    """Hides an activation, so it is not linear per channel."""

    def forward(self, x):
        return torch.relu(super().forward(x))


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (lambda: ActivatedNorm(32), "the branch ends in ActivatedNorm, which cannot take a step size"),
        (lambda: nn.InstanceNorm2d(32, affine=True), "the branch ends in InstanceNorm2d"),
        (lambda: nn.BatchNorm2d(32, affine=False), "its adapter names layer3.0.bn2, a BatchNorm2d without a weight"),
        (lambda: nn.Identity(), "its adapter names layer3.0.bn2, a Identity without a weight"),
    ],
)
def test_a_last_layer_that_cannot_be_reparameterised_is_named_and_nothing_is_changed(last, reason):
    """The last one: the others are found to be sound before."""
    model = plain()
    model.layer3[0].bn2 = last()
    before, found = bits(model), everything(model)
    with pytest.raises(UnsupportedSiteError, match=rf"layer3\.0.*: {reason}"):
        timestepper.attach(model)
    assert same(bits(model), before)
    assert everything(model) == found


def test_a_family_without_norms_is_told_that_an_example_helps():
    net = torchvision.models.resnet18(num_classes=5, norm_layer=nn.Identity)
    told = r"layer1\.0\.bn2, a Identity without a weight.*; or pass example=, what its forward takes, to"
    with pytest.raises(UnsupportedSiteError, match=told):
        timestepper.attach(net)
    assert timestepper.is_attached(timestepper.attach(net, example=torch.randn(1, 3, 32, 32)))


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (nn.utils.parametrizations.weight_norm, "ParametrizedConv2d"),
        (lambda conv: nn.utils.prune.identity(conv, "weight"), "Conv2d"),
    ],
)
def test_a_last_layer_whose_weight_is_computed_is_named(compute, kind):
    """There is no parameter to multiply. A convolution inside the branch may be parametrised."""
    model = FAMILIES["densenet"]()
    compute(model.block1[0].conv)
    with pytest.raises(
        UnsupportedSiteError, match=rf"block1\.0\.conv: the branch ends in {kind}, .*neither pruned nor parametrised"
    ) as refused:
        timestepper.attach(model)
    named = str(refused.value).partition("supported are ")[2].partition(" with ")[0].split(", ")
    assert "BatchNorm2d" in named
    assert len(named) == len(set(named))


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (lambda: nn.Conv2d(8, 8, 1, groups=2), "the gate starts with Conv2d"),
        (lambda: nn.BatchNorm2d(8), "the gate starts with BatchNorm2d"),
    ],
)
def test_a_gate_that_cannot_be_reparameterised_is_named(gate, reason):
    """The columns that a step size divides must be those of all channels."""
    model = plain()
    model.layer1[0].gate = gate()
    with pytest.raises(UnsupportedSiteError, match=f"layer1.0.gate: {reason}, which cannot take a step size"):
        reparam.entries(model, ("layer1.0.bn2",), "layer1.0.gate")


def test_a_parameter_that_layers_share_is_named():
    """In two sites, or in a site and elsewhere: folding would multiply both."""
    for other in ("layer1.1.bn2", "layer1.1.bn1"):
        model = CifarResNet(14, num_classes=5, width=8)
        model.get_submodule(other).weight = model.layer1[0].bn2.weight
        with pytest.raises(UnsupportedSiteError, match=r"layer1\.0\.bn2\.weight is shared with"):
            timestepper.attach(model)


def test_an_attention_that_cannot_be_reparameterised_is_named():
    with pytest.raises(NoSitesError, match=r"layer1\.0: a gate that is no squeeze-excite \(conv1d in layer1\.0\.se"):
        timestepper.attach(timm.create_model("resnet18", block_args={"attn_layer": "eca"}))
    pooled_twice = functools.partial(timm.layers.SEModule, add_maxpool=True)  # a maximum is not linear
    with pytest.raises(NoSitesError, match=r"layer1\.0: a gate that is no squeeze-excite"):
        timestepper.attach(timm.create_model("resnet18", block_args={"attn_layer": pooled_twice}))


@pytest.mark.parametrize("value", [0, -0.1, float("nan"), float("inf")])
def test_a_fixed_step_must_be_positive(value):
    with pytest.raises(StepSizeError, match="a fixed step size must be a positive number of float32, not"):
        timestepper.attach(plain(), f"fixed({value})")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"'lstn'; known are lstm, two_fc, independent, fixed"):
        timestepper.attach(plain(), "lstn")
    with pytest.raises(StepSizeError, match=r"write it as fixed\(value\) with numbers"):
        timestepper.attach(plain(), "fixed")
    with pytest.raises(UnknownNameError, match="unknown descriptor 'sum'; known are mean, visible"):
        timestepper.attach(plain(), descriptor="sum")
    with pytest.raises(StepSizeError, match="reduction must be a whole number of at least 1, not True"):
        timestepper.attach(plain(), reduction=True)
    with pytest.raises(StepSizeError, match="reduction must be a whole number of at least 1, not 0"):
        timestepper.attach(plain(), reduction=0)
    with pytest.raises(StepSizeError, match="descriptor_gradient must be True or False, not 'no'"):
        timestepper.attach(plain(), descriptor_gradient="no")
    with pytest.raises(UnknownNameError, match=r"'resnet50'; write LIBRARY/MODEL, for example timm/resnet50"):
        timestepper.adapters.create_model("resnet50")
    with pytest.raises(UnknownNameError, match=r"did you mean .*resnet50"):
        timestepper.adapters.create_model("timm/resnet5O")
    with pytest.raises(UnknownNameError, match=r"'xqzw1234'; did you mean resnet"):
        timestepper.adapters.create_model("timm/xqzw1234")
    with pytest.raises(UnknownNameError, match=r"known are .*resnet18"):
        timestepper.adapters.create_model("torchvision/resnet19")
    with pytest.raises(UnknownNameError, match="6n"):
        timestepper.adapters.create_model("cifar/resnet57")


def test_controllers_inside_a_larger_network_are_found_by_name():
    whole = nn.ModuleDict({"encoder": small(), "head": nn.Linear(5, 2)})
    for look in (timestepper.fold, timestepper.detach, timestepper.step_sizes):
        with pytest.raises(NotAttachedError, match="has no controllers; its part encoder has some: pass that one"):
            look(whole)


LOOKS = [timestepper.step_sizes, timestepper.summary, timestepper.fold, timestepper.descriptor_influence]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_who_looks_at_spectral_norms_in_train_mode_does_not_move_them(look):
    model = plain()
    for module in list(model.modules()):
        if isinstance(module, nn.Conv2d):
            nn.utils.parametrizations.spectral_norm(module)
    net = timestepper.attach(model).train()
    before = bits(net)
    look(net)
    assert same(bits(net), before)
    assert all(module.training for module in net.modules())


class Perceptron(nn.Module):
    """A block of widths whose matrices are no multiple of any cache line."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


@pytest.mark.parametrize(("width", "hidden"), [(13, 21), (9, 27), (15, 30), (16, 32)])
def test_odd_widths_have_the_logits_of_their_fold_to_the_last_bit(width, hidden):
    """A matrix product adds up in another order where a matrix begins at another address."""
    torch.manual_seed(0)
    net = timestepper.attach(
        nn.Sequential(*[Perceptron(width, hidden) for _ in range(4)]), example=torch.ones(2, width)
    )
    with torch.no_grad():
        for parameter in timestepper.controller_parameters(net):
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        folded = timestepper.fold(net)
        for _ in range(20):
            x = torch.randn(1, width)
            assert torch.equal(net(x), folded(x))


class OwnMatrices(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(width, width)) for _ in range(2))
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.norm(F.linear(torch.relu(F.linear(x, self.first)), self.second))


def test_a_branch_without_a_layer_that_a_controller_could_read_is_left_out():
    with pytest.raises(NoSitesError, match="no layer in its branch has a weight of its own that a controller could"):
        timestepper.attach(nn.Sequential(OwnMatrices(8)), example=torch.ones(2, 8))
    net = timestepper.attach(nn.Sequential(OwnMatrices(8), Perceptron(8, 16)), example=torch.ones(2, 8))
    assert len(timestepper.summary(net, (1, 2, 8)).stages) == 1


def test_a_fresh_network_of_an_attached_one_s_class_can_be_attached_to():
    fresh = type(small())(8, num_classes=5, width=8)
    assert not timestepper.is_attached(fresh)
    timestepper.detach(timestepper.attach(fresh))
    assert type(fresh) is CifarResNet


def test_deferred_initialisation_makes_controllers_as_attach_does():
    """As torch has it: made on the meta device, given memory, and then every module its parameters."""
    with torch.device("meta"):
        net = timestepper.attach(plain())
        counted = timestepper.attach(plain(), start=0.5)
    for module in net.to_empty(device="cpu").modules():
        if hasattr(module, "reset_parameters"):
            with torch.no_grad():
                for parameter in module.parameters(recurse=False):
                    parameter.fill_(torch.nan)  # what memory may hold
            module.reset_parameters()
    assert all((dt - 0.5).abs().max() < 0.1 for dt in timestepper.step_sizes(net).values())
    expected = timestepper.attach(plain()).controllers.state_dict()
    assert {key: (value.shape, value.std() > 0) for key, value in net.controllers.state_dict().items()} == {
        key: (value.shape, value.std() > 0) for key, value in expected.items()
    }
    with pytest.raises(StepSizeError, match=r"start= counts from the first step sizes, which .* meta device"):
        counted.to_empty(device="cpu").controllers.reset_parameters()


def test_attached_in_inference_mode_a_network_can_be_trained():
    net = plain()
    with torch.inference_mode():
        timestepper.attach(net)
    assert all(gradient.isfinite().all() for gradient in gradients(net).values())


def test_a_network_that_is_quantized_afterwards_is_told_to_fold_first():
    net = timestepper.attach(nn.Sequential(Perceptron(8, 16)), example=torch.ones(2, 8)).eval()
    with pytest.raises(WrappedModelError, match=r"0\.up was quantized since attach; quantize timestepper\.fold"):
        torch.ao.quantization.quantize_dynamic(net, {nn.Linear})(torch.ones(2, 8))
