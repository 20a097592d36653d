"""What every controller kind promises."""

import re

import pytest
import torch

from timestepper import attach, detach, equations, load_controllers, save_controllers
from timestepper.adapters import create_model
from timestepper.api import find_steps
from timestepper.controllers import KINDS, ControllerSpec, StageShape, parse
from timestepper.controllers.independent import Independent
from timestepper.errors import StepSizeError, UnknownNameError

SHAPE = StageShape(sites=5, channels=16, descriptor=20, reduction=4)
REMEMBER = {"lstm"}  # what earlier blocks have shown them
NAMES = ["lstm", "two_fc", "independent", "fixed(0.25)", "scalar(0.5)", "channel(0.25)", "depth(0.5)", "gain"]


def build(name: str, shape: StageShape = SHAPE):
    torch.manual_seed(0)
    return parse(name).build(shape)


def test_the_names_cover_every_kind():
    assert {parse(name).kind for name in NAMES} == set(KINDS)
    assert [str(parse(name)) for name in NAMES] == NAMES
    assert parse(parse("lstm")) == parse("lstm")
    assert parse(" fixed( 0.25 ) ") == parse("fixed(0.25)")


@pytest.mark.parametrize("name", ["fixed", "fixed()", "fixed(0.1, 0.2)", "fixed(small)", "lstm(4)"])
def test_options_that_a_kind_does_not_have_are_refused(name):
    with pytest.raises(
        StepSizeError, match=re.escape(f"controller {name!r} has too few or too many options; write it as")
    ):
        parse(name)


def test_mistakes_say_what_this_kind_takes():
    for name in ("lstm", "gain"):
        with pytest.raises(StepSizeError, match=f"write it as {name}, without options$"):
            parse(f"{name}(3)")
    for name in ("scalar", "channel"):
        message = f"of {name} must be a number of float32, not 1e+300; try {name}(0.1)"
        with pytest.raises(StepSizeError, match=re.escape(message)):
            build(f"{name}(1e300)")


@pytest.mark.parametrize(
    ("options", "written"), [({}, "fixed"), ({"value": None}, "fixed(None)"), ({"size": 0.1}, "fixed(0.1)")]
)
def test_a_spec_is_checked_as_a_name_is(options, written):
    wanted = f"controller {written!r} has too few or too many options; write it as fixed(value) with numbers"
    with pytest.raises(StepSizeError, match=re.escape(wanted)):
        attach(create_model("cifar/resnet8"), ControllerSpec("fixed", options))


def test_a_spec_of_no_kind_is_told_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown controller 'lstmm'; known are lstm, .*, fixed\(0\.01\)"):
        attach(create_model("cifar/resnet8"), ControllerSpec("lstmm"))


@pytest.mark.parametrize("example", [torch.randn(1, 3, 32, 32), (torch.randn(1, 3, 32, 32),), {"x": 1}])
def test_an_example_in_the_place_of_a_controller_is_told(example):
    name = type(example).__name__
    with pytest.raises(UnknownNameError, match=f"^{name} is no controller; inputs for discovery are given as example="):
        attach(create_model("cifar/resnet8"), example)


_NOT_IN_FLOAT32 = ["fixed(1e300)", "scalar(-1e300)", "channel(1e39)", "depth(-1000)", "depth(1e5)"]
_NOT_IN_FLOAT32 += ["fixed(1e-50)", "scalar(-1e-50)", "channel(1e-46)", "depth(200)"]  # which would be 0


@pytest.mark.parametrize("name", _NOT_IN_FLOAT32)
def test_a_step_size_that_float32_cannot_hold_is_refused(name):
    with pytest.raises(StepSizeError, match="; try "):
        parse(name).build(StageShape(9, 8, 8, 4))


def test_a_whole_number_is_a_number_too():
    assert parse("fixed(1)") == parse("fixed(1.0)")
    for name in ("fixed(1)", "fixed(1.0)"):
        assert torch.equal(build(name)(torch.randn(5, 20)), torch.ones(5, 16))


class Repeated(Independent):
    """A user's own, with an option that counts and one that need not be given."""

    def __init__(self, shape: StageShape, layers: int, slope: float = 1.0):
        super().__init__(shape)
        self.slopes = torch.nn.ParameterList([torch.nn.Parameter(torch.tensor(slope)) for _ in range(layers)])

    def forward(self, descriptors):
        return torch.sigmoid(self.logit * sum(self.slopes))


@pytest.mark.parametrize("options", [{"layers": 2}, {"layers": 2, "slope": 0.1}])
def test_a_kind_of_one_s_own_comes_back_with_its_options(options, monkeypatch, tmp_path):
    monkeypatch.setitem(KINDS, "my-own", Repeated)
    net = attach(create_model("cifar/resnet8"), ControllerSpec("my-own", options))
    path, spec = save_controllers(net, tmp_path / "steps.safetensors"), find_steps(net).stepping.controller
    back = load_controllers(detach(net), path)
    assert find_steps(back).stepping.controller == spec
    assert all(len(controller.slopes) == 2 for controller in back.controllers.values())


@pytest.mark.parametrize("options", [{}, {"slope": 1.0}, {"slope": 1.0, "layers": 2}, {"layers": "two"}])
def test_options_that_could_not_be_saved_are_refused(options, monkeypatch):
    """A saved name has their values in order, without their names."""
    monkeypatch.setitem(KINDS, "repeated", Repeated)
    with pytest.raises(StepSizeError, match=r"write it as repeated\(layers, slope\) with numbers"):
        parse(ControllerSpec("repeated", options))


@pytest.mark.parametrize("name", NAMES)
def test_descriptors_in_step_sizes_out(name):
    dt = build(name)(torch.randn(5, 20))
    assert dt.shape == (5, 16)
    assert ((dt > 0) & ((dt < 1) | (name == "gain"))).all()  # which nothing caps


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
    assert torch.equal(before[4], after[4]) == (name not in REMEMBER)


@pytest.mark.parametrize("name", NAMES)
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
    nets = [attach(create_model("cifar/resnet8"), reduction=reduction) for reduction in (None, 2, 5)]
    widths = [[controller.shape.hidden for controller in net.controllers.values()] for net in nets]
    assert widths == [[4, 8, 16], [8, 16, 32], [3, 6, 12]]


def test_a_reduction_wider_than_the_stage_leaves_one_unit():
    assert build("lstm", StageShape(2, 4, 8, 16))(torch.randn(2, 8)).shape == (2, 4)
