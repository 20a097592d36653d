"""What every controller kind promises."""

import re

import pytest
import torch

from timestepper import attach, controllers, equations
from timestepper.adapters import create_model
from timestepper.controllers import KINDS, StageShape, parse
from timestepper.errors import StepSizeError

SHAPE = StageShape(sites=5, channels=16, descriptor=20, reduction=4)
NAMES = ["lstm", "two_fc", "independent", "fixed(0.25)"]


def build(name: str, shape: StageShape = SHAPE):
    torch.manual_seed(0)
    return parse(name).build(shape)


def test_the_names_cover_every_kind():
    assert {parse(name).kind for name in NAMES} == set(KINDS)
    assert [str(parse(name)) for name in NAMES] == NAMES
    assert controllers.fixed(0.25) == parse("fixed(0.25)")
    assert parse(parse("lstm")) == parse("lstm")
    assert parse(" fixed( 0.25 ) ") == parse("fixed(0.25)")


@pytest.mark.parametrize("name", ["fixed", "fixed()", "fixed(0.1, 0.2)", "fixed(small)", "lstm(4)"])
def test_options_that_a_kind_does_not_have_are_refused(name):
    with pytest.raises(
        StepSizeError, match=re.escape(f"controller {name!r} is incomplete or has too much; write it as")
    ):
        parse(name)


@pytest.mark.parametrize("name", NAMES)
def test_descriptors_in_step_sizes_out(name):
    dt = build(name)(torch.randn(5, 20))
    assert dt.shape == (5, 16)
    assert ((dt > 0) & (dt < 1)).all()


@pytest.mark.parametrize("name", ["lstm", "two_fc", "independent"])
def test_step_sizes_start_near_one_half(name):
    torch.manual_seed(2)
    weights = 0.02 * torch.randn(5, 20)  # the size of averaged convolution weights
    assert (build(name)(weights) - 0.5).abs().max() < 0.02


@pytest.mark.parametrize("name", ["lstm", "two_fc"])
def test_weights_start_by_their_fan_in_and_twice_as_wide_before_a_relu(name):
    controller = build(name, StageShape(sites=4, channels=256, descriptor=400, reduction=4))
    for key, parameter in controller.named_parameters():
        wanted = (2 / 400) ** 0.5 if key == "input_weight" else 1 / 8 if "weight" in key else 0
        assert parameter.std().item() == pytest.approx(wanted, rel=0.03), key


@pytest.mark.parametrize("name", NAMES)
def test_a_step_knows_only_the_steps_before_it(name):
    controller, descriptors = build(name).double(), torch.randn(5, 20, dtype=torch.float64)
    changed = descriptors.clone()
    changed[3] += 1
    before, after = controller(descriptors), controller(changed)
    assert torch.equal(before[:3], after[:3])
    reads = controller.reads_weights
    assert torch.equal(before[3], after[3]) != reads
    assert torch.equal(before[4], after[4]) == (name != "lstm")  # only the LSTM remembers


@pytest.mark.parametrize("name", ["lstm", "two_fc", "independent"])
def test_low_precision_parameters_are_used_in_float32(name):
    controller = build(name).bfloat16()
    assert controller(torch.randn(5, 20)).dtype == torch.float32
    assert build(name).double()(torch.randn(5, 20, dtype=torch.float64)).dtype == torch.float64


def test_parameter_counts_are_table_1_plus_biases():
    biases = 4 + 4 * 4 + 16
    assert sum(p.numel() for p in build("lstm").parameters()) == equations.lstm_complexity([16], 20 / 16, 4) + biases
    assert sum(p.numel() for p in build("two_fc").parameters()) == equations.two_fc_complexity(
        [5], [16], 20 / 16, 4
    ) + 5 * (4 + 16)
    assert sum(p.numel() for p in build("independent").parameters()) == equations.independent_complexity([5], [16])
    assert not list(build("fixed(0.25)").parameters())


def test_multiply_adds_count_every_use_of_a_matrix():
    assert build("lstm").multiply_adds() == 5 * (20 * 4 + 8 * 16 + 4 * 16)
    assert build("two_fc").multiply_adds() == 5 * (20 * 4 + 4 * 16)
    assert build("independent").multiply_adds() == build("fixed(0.25)").multiply_adds() == 0


def test_two_fc_equals_its_sites_one_by_one():
    controller, descriptors = build("two_fc").double(), torch.randn(5, 20, dtype=torch.float64)
    for site in range(5):
        x = torch.relu(controller.input_weight[site] @ descriptors[site] + controller.input_bias[site, 0])
        dt = torch.sigmoid(controller.output_weight[site] @ x + controller.output_bias[site, 0])
        torch.testing.assert_close(controller(descriptors)[site], dt)


def test_the_reduction_is_the_stages_own_unless_given():
    model = create_model("cifar/resnet8")
    widths = [[c.shape.hidden for c in attach(model, reduction=r).controllers.values()] for r in (None, 2, 5)]
    assert widths == [[4, 8, 16], [8, 16, 32], [3, 6, 12]]


def test_a_reduction_wider_than_the_stage_leaves_one_unit():
    assert build("lstm", StageShape(2, 4, 8, 16))(torch.randn(2, 8)).shape == (2, 4)
