"""What is discovered belongs to one network."""

import pytest
import timm
import torch

import timestepper
from timestepper.errors import MismatchError, NoSitesError


def vit(depth=2, width=24):
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=depth, embed_dim=width, num_heads=2)


@pytest.mark.parametrize(
    ("other", "site"),
    [(vit(depth=1), "blocks.1"), (vit(width=48), "blocks.0"), (torch.nn.Linear(2, 2), "blocks.0")],
)
def test_what_was_discovered_in_another_network_is_refused(other, site):
    found = timestepper.discover(vit())
    keys = list(other.state_dict())
    with pytest.raises(MismatchError, match=rf"{site}\..* of the VisionTransformer that was discovered is not in this"):
        timestepper.attach(other, sites=found)
    assert list(other.state_dict()) == keys
    assert timestepper.is_attached(timestepper.attach(vit(), sites=found))


def test_a_discovery_that_found_nothing_is_refused_with_its_reasons():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    found = timestepper.discover(net, torch.randn(2, 4))
    with pytest.raises(NoSitesError, match="Sequential has no residual branch: its forward adds no two features"):
        timestepper.attach(net, sites=found)
