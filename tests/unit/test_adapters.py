"""Where the sites are, and the worked example of docs/adapters.md."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import timestepper
from timestepper.adapters import base, create_model, find_stages, skipped_blocks
from timestepper.errors import UnknownNameError, UnsupportedSiteError


@pytest.fixture
def _registry_restored():
    before = dict(base._ADAPTERS)
    yield
    base._ADAPTERS.clear()
    base._ADAPTERS.update(before)


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


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_shortcut_is_named_where_it_has_layers(library):
    for depth, stages in ((18, (2, 3, 4)), (50, (1, 2, 3, 4))):
        found = find_stages(create_model(f"{library}/resnet{depth}"))
        named = [site.shortcut for stage in found for site in stage.sites if site.shortcut]
        assert named == [f"layer{stage}.0.downsample" for stage in stages]


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


@pytest.mark.usefixtures("_registry_restored")
def test_a_change_of_width_inside_one_container_starts_a_new_stage():
    timestepper.adapters.register(Block)(lambda block: base.Branch(convs=("inner",), last=("outer",)))
    model = nn.Sequential(Block(4), Block(4), nn.Linear(4, 8), Block(8))
    stages = find_stages(model)
    assert [(stage.name, len(stage.sites), stage.channels) for stage in stages] == [
        ("blocks_0", 2, 4),
        ("blocks_1", 1, 8),
    ]
    assert skipped_blocks(model, stages) == []  # beside the blocks of a whole network stand its stem and its head
    holder = nn.ModuleDict({"trunk": model})
    assert skipped_blocks(holder, find_stages(holder)) == ["trunk.2 (Linear)"]


@pytest.mark.usefixtures("_registry_restored")
def test_a_change_of_descriptor_or_reduction_starts_a_new_stage():
    """One controller reads descriptors of one length and has one width."""

    def adapter(block):
        return base.Branch(convs=block.convs, last=("outer",), reduction=block.reduction)

    timestepper.adapters.register(Block)(adapter)
    model = nn.Sequential(Block(4), Block(4), Block(4), Block(4))
    for block, convs, reduction in zip(model, ("inner", "inner", "outer", "outer"), (4, 2, 2, 2), strict=True):
        block.convs, block.reduction = (convs,), reduction
    assert [(len(s.sites), s.descriptor, s.reduction) for s in find_stages(model)] == [(1, 8, 4), (1, 8, 2), (2, 4, 2)]


@pytest.mark.usefixtures("_registry_restored")
def test_a_block_may_be_the_whole_network():
    timestepper.adapters.register(Block)(lambda block: base.Branch(convs=("inner",), last=("outer",)))
    net = timestepper.attach(Block(4)).eval()
    x = torch.randn(2, 4)
    assert timestepper.step_sizes(net)["blocks"].shape == (1, 4)
    assert torch.equal(net(x), timestepper.fold(net)(x))


@pytest.mark.usefixtures("_registry_restored")
def test_an_adapter_may_leave_a_block_out():
    def wide_only(block):
        return base.Branch(convs=("inner",), last=("outer",)) if block.outer.out_features > 4 else None

    timestepper.adapters.register(Block)(wide_only)
    model = nn.Sequential(Block(4), nn.Linear(4, 8), Block(8))
    assert [site.path for stage in find_stages(model) for site in stage.sites] == ["2"]


@pytest.mark.usefixtures("_registry_restored")
@pytest.mark.parametrize(
    ("branch", "reason"),
    [
        (
            base.Branch(convs=("inner",), last=("inner", "outer")),
            r"0: the last layers .* have \[4, 8\] outputs, not one",
        ),
        (base.Branch(convs=("middle",), last=("outer",)), r"0: its adapter names 0\.middle, which is no layer"),
    ],
)
def test_a_mistake_in_an_adapter_is_named(branch, reason):
    timestepper.adapters.register(Block)(lambda block: branch)
    with pytest.raises(UnsupportedSiteError, match=reason):
        timestepper.attach(nn.Sequential(Block(4)))


@pytest.mark.usefixtures("_registry_restored")
def test_a_subclass_is_a_class_of_its_own():
    class Other(Block):
        def forward(self, x):
            return x - self.outer(self.inner(x))

    timestepper.adapters.register(Block)(lambda block: base.Branch(convs=("inner",), last=("outer",)))
    assert [site.path for stage in find_stages(nn.Sequential(Block(4), Other(4))) for site in stage.sites] == ["0"]


@pytest.mark.usefixtures("_registry_restored")
def test_the_worked_example_runs():
    text = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs/adapters.md", "exec"), {"__name__": "example"})
