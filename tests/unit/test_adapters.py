"""Where the sites are, and the worked example of docs/adapters.md."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import timestepper
from timestepper.adapters import base, create_model, find_stages, skipped_blocks


@pytest.fixture
def _registry_restored():
    before = dict(base._ADAPTERS)
    yield
    base._ADAPTERS.clear()
    base._ADAPTERS.update(before)


@pytest.mark.parametrize(
    ("name", "sites", "channels", "descriptors"),
    [
        ("timm/resnet34", [3, 4, 6, 3], [64, 128, 256, 512], [1152, 2304, 4608, 9216]),
        ("timm/resnet50", [3, 4, 6, 3], [256, 512, 1024, 2048], [320, 640, 1280, 2560]),
        ("timm/resnext50_32x4d", [3, 4, 6, 3], [256, 512, 1024, 2048], [384, 768, 1536, 3072]),
        ("timm/seresnet50", [3, 4, 6, 3], [256, 512, 1024, 2048], [320, 640, 1280, 2560]),
        ("torchvision/resnet18", [2, 2, 2, 2], [64, 128, 256, 512], [1152, 2304, 4608, 9216]),
        ("torchvision/resnext50_32x4d", [3, 4, 6, 3], [256, 512, 1024, 2048], [384, 768, 1536, 3072]),
        ("cifar/resnet56", [9, 9, 9], [16, 32, 64], [288, 576, 1152]),
        ("cifar/densenet40", [12, 12, 12], [12, 12, 12], [108, 108, 108]),
        ("cifar/cliquenet", [4, 4, 4], [36, 36, 36], [648, 648, 648]),
    ],
)
def test_stages(name, sites, channels, descriptors):
    stages = find_stages(create_model(name))
    assert [len(stage.sites) for stage in stages] == sites
    assert [stage.channels for stage in stages] == channels
    assert [stage.descriptor for stage in stages] == descriptors


def test_the_shortcut_is_named_where_it_has_layers():
    sites = [site for stage in find_stages(create_model("timm/resnet18")) for site in stage.sites]
    named = [site.shortcut for site in sites if site.shortcut]
    assert named == ["layer2.0.downsample", "layer3.0.downsample", "layer4.0.downsample"]


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
    holder = nn.ModuleDict({"trunk": model})
    assert skipped_blocks(holder, find_stages(holder)) == ["trunk.2 (Linear)"]


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
