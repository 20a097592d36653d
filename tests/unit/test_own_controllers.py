"""Controllers of a user's own: by a name or a class, in attach, files, recipes and on the page; and the new kinds."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import timestepper
from timestepper import controllers, names
from timestepper.controllers import Controller, StageShape, parse, register
from timestepper.errors import RecipeError, StepSizeError, UnknownNameError
from timestepper.models import CifarResNet
from timestepper.recipe.load import as_dict, load
from timestepper.records.subject import subject_of
from timestepper.runs.build import controller_name
from timestepper.sweeps.plan import _alternatives

DOCS = Path(__file__).parents[2] / "docs" / "tutorials" / "controller.md"
SHAPE = StageShape(3, 4, 10, 2)


@pytest.fixture(autouse=True)
def _kinds_restored():
    before = dict(controllers.KINDS), dict(names.CONTROLLERS)
    yield
    for table, kept in zip((controllers.KINDS, names.CONTROLLERS), before, strict=True):
        table.clear()
        table.update(kept)


class Steep(Controller):
    """A free number per block, with an option."""

    reads_weights = False

    def __init__(self, shape: StageShape, slope: float = 1.0):
        super().__init__(shape)
        self.slope = slope
        self.logit = nn.Parameter(torch.zeros(shape.sites, 1))

    def forward(self, descriptors):
        return torch.sigmoid(self.slope * self.logit + 1).expand(-1, self.shape.channels)


def net():
    return CifarResNet(8, width=8, num_classes=5)


def test_the_page_s_table_has_every_kind():
    listed = re.findall(r"^\| `(\w+)", DOCS.read_text(), re.M)
    assert set(listed) == set(controllers.KINDS)


def test_a_name_and_a_class_are_one(tmp_path):
    register("steep")(Steep)
    assert str(parse(Steep)) == "steep"
    attached = timestepper.attach(net(), "steep(2)")
    assert all(controller.slope == 2 for controller in attached.controllers.values())
    path = timestepper.save_controllers(attached, tmp_path / "steps.safetensors")
    again = timestepper.load_controllers(timestepper.detach(attached), path)
    assert all(type(controller) is Steep and controller.slope == 2 for controller in again.controllers.values())


def test_a_class_without_a_name_is_found_by_where_it_is(tmp_path):
    attached = timestepper.attach(net(), Steep)
    path = timestepper.save_controllers(attached, tmp_path / "steps.safetensors")
    name = f"{Steep.__module__}:Steep"
    assert str(attached._timestepper.stepping.controller) == name
    del controllers._UNNAMED[name]
    again = timestepper.load_controllers(timestepper.detach(attached), path)
    assert [type(controller) for controller in again.controllers.values()] == [Steep] * 3
    for missing in ("nowhere:Steep", f"{Steep.__module__}:Flat"):
        with pytest.raises(UnknownNameError, match="unknown controller"):
            parse(missing)


def test_mistakes_are_one_line():
    with pytest.raises(UnknownNameError, match="a controller called 'lstm' exists already"):
        register("lstm")(Steep)
    with pytest.raises(UnknownNameError, match="cannot be the name of a controller"):
        register("My Own")
    with pytest.raises(UnknownNameError, match="is no controller; derive it from"):
        register("linear")(nn.Linear)
    with pytest.raises(UnknownNameError, match="is no controller; derive it from"):
        timestepper.attach(net(), nn.Linear)


def test_step_sizes_of_another_shape_are_refused_and_nothing_stays():
    class Wrong(Steep):
        def forward(self, descriptors):
            return self.logit

    plain = net()
    with pytest.raises(StepSizeError, match=r"Wrong gives step sizes of shape \(1, 1\) for layer1.*return \(1, 8\)"):
        timestepper.attach(plain, Wrong)
    assert not timestepper.is_attached(plain)
    assert type(plain) is CifarResNet


@pytest.mark.parametrize("given", [None, 0.5, "half"])
def test_what_is_no_tensor_is_refused_and_nothing_stays(given):
    class Odd(Controller):
        def forward(self, descriptors):
            return given

    plain = net()
    with pytest.raises(StepSizeError, match=r"Odd gives no tensor for layer1, .*; return \(1, 8\)"):
        timestepper.attach(plain, Odd)
    assert not timestepper.is_attached(plain)


def test_step_sizes_that_are_no_numbers_are_the_controller_s_fault():
    class Lost(Steep):
        def forward(self, descriptors):
            return super().forward(descriptors) / 0

    with pytest.raises(StepSizeError, match="Lost gives step sizes that are NaN or infinite for layer1, from weights"):
        timestepper.attach(net(), Lost)
    empty = net()
    nn.init.constant_(empty.layer1[0].conv1.weight, torch.nan)  # weights that are loaded later
    timestepper.attach(empty, "two_fc")


def test_on_the_meta_device_no_numbers_are_looked_at():
    class Constant(Steep):
        def forward(self, descriptors):
            return torch.full((self.shape.sites, self.shape.channels), 0.5)

    assert timestepper.is_attached(timestepper.attach(net().to("meta"), Constant))
    with FakeTensorMode():
        assert timestepper.is_attached(timestepper.attach(net(), "fixed(0.5)"))


class Noisy(Controller):
    """What layers of a user's may bring along: chance, and a buffer that counts."""

    def __init__(self, shape):
        super().__init__(shape)
        self.norm = nn.BatchNorm1d(shape.descriptor)
        self.out = nn.Sequential(nn.Dropout(0.5), nn.Linear(shape.descriptor, shape.channels))
        self.register_buffer("place", torch.arange(shape.sites))

    def forward(self, descriptors):
        return torch.sigmoid(self.out(self.norm(descriptors)) - self.place[:, None])


def deep():
    torch.manual_seed(0)
    return CifarResNet(14, width=8, num_classes=5)


def test_who_only_looks_at_step_sizes_sees_them_without_chance():
    """An identity counted from step sizes with dropout is none, and a fold would keep the chance of one call."""
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    stepped = deep()
    expected = stepped.eval()(images)
    timestepper.attach(stepped.train(), Noisy, start="identity")
    assert torch.equal(stepped.eval()(images), expected)
    before = {name: tensor.clone() for name, tensor in stepped.train().state_dict().items()}
    with torch.no_grad():
        for parameter in timestepper.controller_parameters(stepped):
            parameter.add_(0.3)
    folded, sizes = timestepper.fold(stepped), timestepper.step_sizes(stepped)
    assert all(module.training for module in stepped.modules())
    assert torch.equal(folded.eval()(images), stepped.eval()(images))
    for name, dt in timestepper.step_sizes(stepped).items():
        assert torch.equal(dt, sizes[name])
    counted = {name: tensor for name, tensor in stepped.state_dict().items() if "running" in name or "num_" in name}
    assert all(torch.equal(tensor, before[name]) for name, tensor in counted.items())


def test_who_looks_does_not_change_the_mode_of_another_thread_that_trains():
    """Else the dropout of its controllers would come and go; and one that evaluates would be left in train mode."""
    stepped, seen = timestepper.attach(deep(), Noisy).train(), []

    def note(*_):
        seen.append([module.training for module in stepped.modules()])  # as another thread would just then

    for controller in stepped.controllers.values():
        controller.out.register_forward_pre_hook(note)
    timestepper.step_sizes(stepped)
    timestepper.fold(stepped)
    with timestepper.frozen_steps(stepped):
        pass
    assert len(seen) == 9
    assert all(map(all, seen))


def test_controllers_with_whole_numbers_come_back(tmp_path):
    stepped = timestepper.attach(deep(), Noisy).eval()
    path = timestepper.save_controllers(stepped, tmp_path / "steps.safetensors")
    back = timestepper.load_controllers(deep(), path).eval()
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert torch.equal(back(images), stepped(images))


def test_buffers_begin_as_they_are_made_after_the_meta_device():
    stepped = timestepper.attach(deep().to("meta"), Noisy).to_empty(device="cpu")
    for controller in stepped.controllers.values():
        controller.place.fill_(-1)
    stepped.controllers.reset_parameters()
    assert [controller.place.tolist() for controller in stepped.controllers.values()] == [[0, 1]] * 3


def test_options_have_a_place():
    """What is given by name alone cannot be written behind a controller's; nor is a default shown that is no number."""

    class ByName(Steep):
        def __init__(self, shape, *, width):
            super().__init__(shape)

    class Odd(Steep):
        def __init__(self, shape, way="relu", *more, quick=True, **others):
            super().__init__(shape)

    with pytest.raises(UnknownNameError, match=r"ByName wants width by its name.*write it before the \*"):
        register("by_name")(ByName)
    assert "by_name" not in controllers.KINDS
    register("odd")(Odd)
    assert names.CONTROLLERS["odd"].example == "odd(way)"
    assert load("smoke/digits-lstm", ["controller.kind=odd", f"controller.module={__name__}"]).controller.kind == "odd"


def test_a_constructor_that_fails_is_one_line():
    class Recurrent(Steep):
        def __init__(self, shape, width):
            super().__init__(shape)
            self.gru = nn.GRU(shape.channels, width)

    class NoShape(Steep):
        def __init__(self):
            pass

    register("recurrent")(Recurrent)
    for wrong, reason in {
        "recurrent(0)": "ValueError: hidden_size",
        "recurrent(8.5)": "TypeError: hidden_size",
    }.items():
        with pytest.raises(
            StepSizeError, match=rf"^controller {re.escape(wrong)} cannot be built for 1 sites.*{reason}"
        ):
            timestepper.attach(net(), wrong)
    with pytest.raises(UnknownNameError, match=r"NoShape takes no shape of a stage; write def __init__\(self, shape\)"):
        register("no_shape")(NoShape)


# -- recipes and the page ----------------------------------------------------------------------------------------------


def test_a_recipe_names_the_module_that_registers_it(tmp_path, monkeypatch):
    (tmp_path / "two_numbers.py").write_text(
        "from timestepper.controllers import register\nfrom timestepper.controllers.independent import Independent\n"
        "@register('mine')\nclass Mine(Independent):\n"
        "    def __init__(self, shape, one=1, two=2):\n        super().__init__(shape)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "two_numbers", raising=False)
    with pytest.raises(RecipeError, match=r"controller\.kind cannot be 'mine'.*needs controller\.module"):
        load("smoke/digits-lstm", ["controller.kind=mine"])
    with pytest.raises(RecipeError, match=r"controller\.module 'nowhere' cannot be imported"):
        load("smoke/digits-lstm", ["controller.kind=mine", "controller.module=nowhere"])
    recipe = load("smoke/digits-lstm", ["controller.kind=mine(3, 4)", "controller.module=two_numbers"])
    assert controller_name(recipe) == "mine(3, 4)"
    assert subject_of(as_dict(recipe)).label == "mine 3, 4"


def test_a_recipe_names_a_kind_without_its_option_where_that_has_a_default():
    class Needy(Steep):
        def __init__(self, shape, slope):
            super().__init__(shape, slope)

    register("steep")(Steep)
    register("needy")(Needy)
    own = f"controller.module={__name__}"
    recipe = load("smoke/digits-lstm", ["controller.kind=steep", own])
    assert controller_name(recipe) == "steep"
    assert (
        controller_name(load("smoke/digits-lstm", ["controller.kind=steep", "controller.value=2", own])) == "steep(2)"
    )
    assert "steep(1.0), needy(slope)" in names.known()
    with pytest.raises(RecipeError, match=r"needy needs controller\.value, its slope, a number"):
        load("smoke/digits-lstm", ["controller.kind=needy", own])
    with pytest.raises(RecipeError, match=r"fixed needs controller\.value, for example 0\.01"):
        load("smoke/digits-lstm", ["controller.kind=fixed"])


def test_a_sweep_does_not_split_options():
    assert _alternatives("controller.kind=lstm,mine(3, 4),none") == [
        "controller.kind=lstm",
        "controller.kind=mine(3, 4)",
        "controller.kind=none",
    ]


def test_a_recipe_says_where_to_start():
    recipe = load("smoke/digits-lstm", ["controller.start=identity"])
    assert subject_of(as_dict(recipe)).label == "lstm, start identity"
    assert subject_of(as_dict(load("smoke/digits-lstm", ["controller.start=0.1"]))).label == "lstm, start 0.1"
    assert subject_of(as_dict(load("smoke/digits-lstm"))).label == "lstm"
    for wrong in ("half", "0", "-1", "nan"):
        with pytest.raises(RecipeError, match=r"controller\.start must be paper, identity or a positive number"):
            load("smoke/digits-lstm", [f"controller.start={wrong}"])


# -- the new kinds -----------------------------------------------------------------------------------------------------


def test_scalar_and_channel_begin_at_their_value_and_learn():
    for kind, size in (("scalar(0)", (3, 1)), ("channel(1.5)", (3, 4))):
        controller = parse(kind).build(SHAPE)
        dt = controller(torch.empty(0))
        assert dt.shape == (3, 4)
        assert (dt == float(kind[:-1].partition("(")[2])).all()
        assert controller.step_size.shape == size
        dt.sum().backward()
        assert controller.step_size.grad.any()


def test_depth_is_a_power_of_the_number_of_blocks():
    assert torch.allclose(parse("depth(0.5)").build(SHAPE)(torch.empty(0)), torch.full((3, 4), 3**-0.5))
    attached = timestepper.attach(CifarResNet(20, width=8), "depth(1)")
    assert timestepper.evolution_time(attached) == pytest.approx({"layer1": 1, "layer2": 1, "layer3": 1})


def test_a_block_that_begins_at_zero_is_the_identity():
    attached = timestepper.attach(net(), "scalar(0)").eval()
    x = torch.rand(2, 8, 5, 5)
    assert torch.equal(attached.layer1[0](x), x)


def test_no_gate_is_divided_by_zero():
    import timm

    with pytest.raises(StepSizeError, match=r"layer1\.0: scalar\(0\) would divide .* gate by 0"):
        timestepper.attach(timm.create_model("seresnet18"), "scalar(0)")
