"""Where the sites are."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import timestepper
from timestepper.errors import UnknownNameError, UnsupportedSiteError
from timestepper.models import CifarResNet
from timestepper.sites import create_model, find_stages, known, skipped_blocks


@pytest.fixture(autouse=True)
def _registry_restored():
    before = dict(known._ADAPTERS)
    yield
    known._ADAPTERS.clear()
    known._ADAPTERS.update(before)


@pytest.mark.parametrize(
    ("name", "sites", "channels", "descriptors", "reduction"),
    [
        ("timm/resnet34", [3, 4, 6, 3], [64, 128, 256, 512], [1152, 2304, 4608, 9216], 4),
        ("timm/resnet50", [3, 4, 6, 3], [256, 512, 1024, 2048], [320, 640, 1280, 2560], 8),
        ("timm/resnext50_32x4d", [3, 4, 6, 3], [256, 512, 1024, 2048], [384, 768, 1536, 3072], 8),
        ("timm/seresnet50", [3, 4, 6, 3], [256, 512, 1024, 2048], [320, 640, 1280, 2560], 8),
        ("torchvision/resnet18", [2, 2, 2, 2], [64, 128, 256, 512], [1152, 2304, 4608, 9216], 4),
        ("torchvision/resnext50_32x4d", [3, 4, 6, 3], [256, 512, 1024, 2048], [384, 768, 1536, 3072], 8),
        ("cifar/resnet56", [9, 9, 9], [16, 32, 64], [288, 576, 1152], 4),
        ("cifar/densenet40", [12, 12, 12], [12, 12, 12], [108, 108, 108], 4),
        ("cifar/cliquenet", [4, 4, 4], [36, 36, 36], [648, 648, 648], 4),
    ],
)
def test_stages(name, sites, channels, descriptors, reduction):
    stages = find_stages(create_model(name))
    assert [len(stage.sites) for stage in stages] == sites
    assert [stage.channels for stage in stages] == channels
    assert [stage.descriptor for stage in stages] == descriptors
    assert {stage.reduction for stage in stages} == {reduction}


@pytest.mark.parametrize("name", ["timm/resnet18", "cifar/resnet8", "cifar/densenet40", "cifar/cliquenet"])
def test_classes_and_channels_are_as_asked_for(name):
    assert create_model(name, num_classes=7, in_chans=1).eval()(torch.randn(2, 1, 32, 32)).shape == (2, 7)


def test_torchvision_takes_classes_but_no_other_channels():
    assert create_model("torchvision/resnet18", num_classes=7).fc.out_features == 7
    with pytest.raises(UnknownNameError, match="torchvision/resnet18 reads 3 channels, not 1; use timm/resnet18"):
        create_model("torchvision/resnet18", in_chans=1)


def test_the_original_stride_is_in_the_first_convolution():
    for name in ("timm/resnet50", "torchvision/resnet50"):
        block = create_model(name, original_stride=True).layer2[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
        block = create_model(name).layer2[0]
        assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))


def test_a_change_of_width_inside_one_container_starts_a_new_stage():
    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("outer",)))
    model = nn.Sequential(Block(4), Block(4), nn.Linear(4, 8), Block(8))
    stages = find_stages(model)
    assert [(stage.name, len(stage.sites), stage.channels) for stage in stages] == [
        ("blocks_0", 2, 4),
        ("blocks_1", 1, 8),
    ]
    assert skipped_blocks(model, stages) == []  # beside the blocks of a whole network stand its stem and its head
    holder = nn.ModuleDict({"trunk": model})
    assert skipped_blocks(holder, find_stages(holder)) == ["trunk.2 (Linear)"]


def test_a_change_of_descriptor_or_reduction_starts_a_new_stage():
    """One controller reads descriptors of one length and has one width."""

    def adapter(block):
        return known.Branch(convs=block.convs, last=("outer",), reduction=block.reduction)

    timestepper.adapters.register(Block)(adapter)
    model = nn.Sequential(Block(4), Block(4), Block(4), Block(4))
    for block, convs, reduction in zip(model, ("inner", "inner", "outer", "outer"), (4, 2, 2, 2), strict=True):
        block.convs, block.reduction = (convs,), reduction
    assert [(len(s.sites), s.descriptor, s.reduction) for s in find_stages(model)] == [(1, 8, 4), (1, 8, 2), (2, 4, 2)]


def test_a_block_may_be_the_whole_network():
    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("outer",)))
    net = timestepper.attach(Block(4)).eval()
    x = torch.randn(2, 4)
    assert timestepper.step_sizes(net)["blocks"].shape == (1, 4)
    assert torch.equal(net(x), timestepper.fold(net)(x))


def test_an_adapter_may_leave_a_block_out():
    def wide_only(block):
        return known.Branch(convs=("inner",), last=("outer",)) if block.outer.out_features > 4 else None

    timestepper.adapters.register(Block)(wide_only)
    model = nn.Sequential(Block(4), nn.Linear(4, 8), Block(8))
    assert [site.path for stage in find_stages(model) for site in stage.sites] == ["2"]


class OddBlock(Block):
    """With layers that cannot describe a branch."""

    def __init__(self, width: int):
        super().__init__(width)
        self.norm, self.up, self.act = nn.BatchNorm1d(width), nn.ConvTranspose1d(width, width, 1), nn.ReLU()


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ({"last": ("inner", "outer")}, r"the last layers .* have \[4, 8\] outputs, not one"),
        ({"last": "outer"}, r"its adapter gives last='outer'; give a tuple of layer names, such as last=\('conv1',\)"),
        ({"last": ()}, r"its adapter gives last=\(\); give a tuple"),
        ({"convs": "inner"}, "its adapter gives convs='inner'; give a tuple of layer names"),
        ({"convs": ()}, r"its adapter gives convs=\(\); give a tuple"),
        ({"convs": (nn.ReLU(),)}, r"its adapter gives convs=\(ReLU\(\),\); give a tuple of layer names"),
        ({"convs": None}, "its adapter gives convs=None; give a tuple"),
        ({"convs": ("middle",)}, r"its adapter names 0\.middle, which is no layer; give names inside the block"),
        ({"convs": ("act",)}, r"its adapter names 0\.act, a ReLU without a weight; name a layer that has one"),
        (
            {"convs": ("norm",)},
            r"its adapter names 0\.norm in convs, a BatchNorm1d, whose weight is not .*; name layers",
        ),
        (
            {"convs": ("inner", "up")},
            r"its adapter names 0\.up in convs, a ConvTranspose1d, whose weight is not \(outputs",
        ),
        ({"gate": "nope"}, r"its adapter names 0\.nope, which is no layer; .* None for what it does not have"),
        ({"reduction": 0}, "its adapter gives reduction=0; give a whole number of at least 1"),
        ({"reduction": 2.5}, "its adapter gives reduction=2.5; give a whole number of at least 1"),
    ],
)
def test_a_mistake_in_an_adapter_is_named(mistake, reason):
    branch = known.Branch(**{"convs": ("inner",), "last": ("outer",), **mistake})
    timestepper.adapters.register(OddBlock)(lambda block: branch)
    with pytest.raises(UnsupportedSiteError, match=f"^0: {reason}"):
        timestepper.attach(nn.Sequential(OddBlock(4)))
    with pytest.raises(UnsupportedSiteError, match=r"^OddBlock: "):  # it has no path where it is the whole network
        timestepper.attach(OddBlock(4))


def test_an_adapter_that_returns_no_branch_is_named():
    timestepper.adapters.register(Block)(lambda block: ("inner", "outer"))
    with pytest.raises(UnsupportedSiteError, match=r"^0: its adapter returns a tuple; return a timestepper.*, or None"):
        timestepper.attach(nn.Sequential(Block(4)))


class Around(nn.Module):
    """A layer around another, as adapters of low rank are."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class AroundWithWeight(Around):
    @property
    def weight(self):
        return self.layer.weight


def test_a_layer_around_a_convolution_needs_a_weight():
    model = CifarResNet(8, num_classes=5, width=8)
    model.layer1[0].conv1 = AroundWithWeight(model.layer1[0].conv1)
    timestepper.detach(timestepper.attach(model))
    model.layer2[0].conv1 = Around(model.layer2[0].conv1)
    with pytest.raises(
        UnsupportedSiteError, match=r"names layer2\.0\.conv1, a Around without a weight; .* give .* a property"
    ):
        timestepper.attach(model)


# What computes a weight by a hook, and what to do instead.
HOOKED = {
    "pruned": (
        lambda conv: prune.l1_unstructured(conv, "weight", 0.3),
        lambda conv: prune.remove(prune.l1_unstructured(conv, "weight", 0.3), "weight"),
    ),
    "spectral norm": (nn.utils.spectral_norm, parametrizations.spectral_norm),
    "weight norm": (nn.utils.weight_norm, parametrizations.weight_norm),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's about its old weight_norm
@pytest.mark.parametrize("kind", HOOKED)
def test_a_weight_that_a_hook_computes_is_named_and_the_advice_helps(kind):
    """The hook runs after the controller has read the weight, whose graph the step before has used up."""
    hooked, instead = HOOKED[kind]
    model = CifarResNet(8, num_classes=5, width=8)
    plain = copy.deepcopy(model)
    hooked(model.layer1[0].conv1)
    with pytest.raises(UnsupportedSiteError, match=r"layer1\.0: layer1\.0\.conv1\.weight is computed by a hook"):
        timestepper.attach(model)
    timestepper.attach(model.requires_grad_(False))  # not trained, it is a constant
    instead(plain.layer1[0].conv1)
    net, images = timestepper.attach(plain), torch.randn(2, 3, 8, 8)
    for _ in range(2):
        net(images).sum().backward()
    assert torch.equal(net.eval()(images), timestepper.fold(net)(images))


def test_a_gate_whose_weight_is_computed_is_named():
    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("inner",), gate="outer"))
    model = nn.Sequential(Block(4))
    prune.identity(model[0].outer, "weight")
    with pytest.raises(
        UnsupportedSiteError, match=r"0\.outer: the gate starts with Linear, .*neither pruned nor parametrised"
    ):
        timestepper.attach(model)


class Outer(nn.Module):
    """A block around a block: both may be registered."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.block = nn.Linear(width, width), Block(width)

    def forward(self, x):
        return x + self.block(self.first(x))


def test_a_layer_that_ends_two_branches_is_named():
    """One of the two step sizes would be lost, and its controller never learn."""
    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("outer",)))
    timestepper.adapters.register(Outer)(lambda block: known.Branch(convs=("first",), last=("block.outer",)))
    with pytest.raises(UnsupportedSiteError, match=r"0\.block\.outer\.weight would take two step sizes"):
        timestepper.attach(nn.Sequential(Outer(4)))
    timestepper.adapters.register(Outer)(lambda block: known.Branch(convs=("first",), last=("first",)))
    net = timestepper.attach(nn.Sequential(Outer(4)))
    net(torch.randn(2, 4)).sum().backward()
    assert all(parameter.grad.any() for parameter in net.controllers.parameters() if parameter.dim() == 1)
    model = nn.Sequential(Block(4), Block(4))
    model[1].outer = model[0].outer  # one layer in two blocks
    with pytest.raises(
        UnsupportedSiteError, match=r"0\.outer\.weight would take two step sizes .*; give each branch a"
    ):
        timestepper.attach(model)


@pytest.mark.parametrize(
    ("containers", "names"),
    [
        (["a", "b.c", "b_d"], ["a", "b.c", "b_d"]),
        (["b.c", "b_c"], ["b.c_0", "b_c_1"]),
        (["update", "x.keys", "zero.grad"], ["update_0", "x.keys", "zero.grad_0"]),
        (["a", "a", "a_1"], ["a_0", "a_1_0", "a_1_1"]),
        (["b.c", "b.c", "b_c"], ["b.c_0", "b.c_1", "b_c"]),  # worked ever since: saved files have these names
        (["pop", "pop"], ["pop_0", "pop_1"]),  # these too
    ],
)
def test_every_stage_has_a_controller_of_its_own(containers, names):
    """A ModuleDict, which holds them, takes no dots and no names of its own methods."""
    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("outer",)))
    model = nn.Module()
    for width, container in enumerate(containers, 1):
        path = model
        for name in container.split("."):
            if name not in path._modules:
                path.register_module(name, nn.Module())
            path = path._modules[name]
        path.register_module(str(width), Block(width))
    sizes = timestepper.step_sizes(timestepper.attach(model))
    assert list(sizes) == names
    assert [dt.shape[1] for dt in sizes.values()] == list(range(1, len(containers) + 1))


def test_a_subclass_is_a_class_of_its_own():
    class Other(Block):
        def forward(self, x):
            return x - self.outer(self.inner(x))

    timestepper.adapters.register(Block)(lambda block: known.Branch(convs=("inner",), last=("outer",)))
    assert [site.path for stage in find_stages(nn.Sequential(Block(4), Other(4))) for site in stage.sites] == ["0"]
