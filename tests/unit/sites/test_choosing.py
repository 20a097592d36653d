"""What is discovered belongs to one network; what is left out is told, but not to who has chosen."""

import warnings

import pytest
import timm
import torch

import timestepper
from timestepper.errors import MismatchError, NoSitesError, TimestepperError


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


def test_a_discovery_that_found_no_site_is_refused_with_its_reasons():
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))
    found = timestepper.discover(net, torch.randn(2, 3))
    with pytest.raises(NoSitesError, match="Sequential has no residual branch: its forward adds no two features"):
        timestepper.attach(net, sites=found)


class Block(torch.nn.Module):
    def __init__(self, last):
        super().__init__()
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), last)

    def forward(self, x):
        return x + self.mlp(x)


class Rotated(Block):
    """Begins with a sum that is no residual."""

    def forward(self, x):
        return super().forward(0.6 * x + 0.8 * torch.cat([-x[..., 4:], x[..., :4]], -1))


EXAMPLE = torch.randn(2, 3, 8)


def half():
    return torch.nn.Sequential(Block(torch.nn.Identity()), Block(torch.nn.ReLU()))


def test_residual_sums_that_take_no_step_size_are_told():
    said = r"^Sequential: 1 of 2 residual sums take no step size; print\(timestepper.discover\(net\)\) says why$"
    with pytest.warns(UserWarning, match=said) as told:
        timestepper.attach(half(), example=EXAMPLE)
    (warning,) = told
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (half(), {"sites": "0"}),
        (torch.nn.Sequential(*half(), Block(torch.nn.Identity())), {"exclude": "0"}),
        (half(), {"sites": timestepper.discover(half(), EXAMPLE)}),
        (torch.nn.Sequential(Rotated(torch.nn.Identity())), {}),
    ],
)
def test_who_has_chosen_is_told_nothing_nor_of_what_is_no_residual(net, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.attach(net, example=EXAMPLE, **options)


def test_controllers_that_are_loaded_are_told_nothing(tmp_path):
    with pytest.warns(UserWarning, match="1 of 2 residual sums"):
        net = timestepper.attach(half(), example=EXAMPLE)
    timestepper.save_controllers(net, tmp_path / "c.safetensors")
    plain = timestepper.fold(net)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        timestepper.load_controllers(plain, tmp_path / "c.safetensors", example=EXAMPLE)


def one_line(net, **options):
    with pytest.raises(TimestepperError) as error:
        timestepper.attach(net, **options)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None or error.value.__suppress_context__
    return str(error.value)


def test_only_the_error_that_counts_is_shown():
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8))
    assert "its forward adds no two features" in one_line(plain, example=EXAMPLE)
    assert "says nothing of its input" in one_line(plain)
    assert "no site is called 'x'" in one_line(half(), example=EXAMPLE, sites="x")


def test_a_network_that_is_given_in_the_wrong_place_is_not_printed():
    assert "a network is needed, not a list; " in one_line([half()])
    assert "a network is needed, not 'resnet18'; " in one_line("resnet18")
    for wrong in (half(), [half()]):
        assert one_line(half(), example=EXAMPLE, sites=wrong).endswith("in a list, not Sequential")
