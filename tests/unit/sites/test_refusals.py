"""What gets no step size, each with its reason; and bad input, one line each, with nothing left on the network."""

import pytest
import timm
import torch
from timm.layers import EcaModule, StdConv2d
from torch import nn
from torch.overrides import TorchFunctionMode

import timestepper
from timestepper.errors import MismatchError, NoSitesError, TimestepperError, UnknownNameError

WIDTH = 8
PIXELS, TOKENS = (2, WIDTH, 6, 6), (2, 4, WIDTH)


class Block(nn.Module):
    def __init__(self, *last: nn.Module):
        super().__init__()
        self.first, self.last = conv(), nn.Sequential(*last)

    def forward(self, x):
        return x + self.last(torch.relu(self.first(x)))


class TokenMixer(nn.Module):
    """Mixer's first branch works across tokens, its second one across channels."""

    def __init__(self):
        super().__init__()
        self.across, self.along = mlp(4), mlp(WIDTH)

    def forward(self, x):
        x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
        return x + self.along(x)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = mlp(WIDTH)

    def forward(self, x):
        turned = torch.cat([-x[..., 4:], x[..., :4]], -1)
        return self.mlp(x * 0.6 + turned * 0.8)


class Reparameterised(nn.Module):
    """Parallel branches of one layer, as in RepVGG and MobileOne."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Sequential(conv(), nn.BatchNorm2d(WIDTH)), nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        return torch.relu(self.one(x) + self.two(x) + x)


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.first = Block(conv()), conv()

    def forward(self, x):
        return x + self.inner(torch.relu(self.first(x)))


class Mixed(nn.Module):
    """As in EfficientViM: the stream goes some way towards F(x)."""

    def __init__(self):
        super().__init__()
        self.inner, self.gate = mlp(TOKENS[-1]), nn.Parameter(torch.randn(TOKENS[-1]))

    def forward(self, x):
        return x + self.gate.sigmoid() * (self.inner(x) - x)


class Elsewhere(nn.Module):
    """The end of the branch is used twice."""

    def __init__(self):
        super().__init__()
        self.mlp, self.head = mlp(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.mlp(x)
        return (x + y) * self.head(y)


class SharedEnd(nn.Module):
    """Two branches whose last layer is one."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.last(torch.relu(self.one(x)))
        return x + self.last(torch.relu(self.two(x)))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.mlp, self.other = mlp(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp[0] = nn.Linear(WIDTH, WIDTH)
        self.mlp[2] = nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.mlp[2].weight

    def forward(self, x):
        return x + self.mlp(self.other(x))


class Selected(nn.Module):
    """A branch whose shape depends on the data."""

    def __init__(self):
        super().__init__()
        self.mlp = mlp(WIDTH)

    def forward(self, x):
        kept = self.mlp(x)[x[..., 0] > -9]
        return x + kept.reshape(x.shape)


class Groups(nn.Module):
    """The groups inside a block of Res2Net: parts of one feature, added to what others became."""

    def __init__(self):
        super().__init__()
        half = WIDTH // 2
        self.one, self.two = (nn.Conv2d(half, half, 3, padding=1) for _ in range(2))

    def forward(self, x):
        first, second = x.chunk(2, 1)
        first = torch.relu(self.one(first))
        return torch.cat([first, torch.relu(self.two(first + second))], 1)


def conv() -> nn.Module:
    return nn.Conv2d(WIDTH, WIDTH, 3, padding=1)


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))


# name: network, shape, reason, whether it is a residual sum
CASES = {
    "activation": (lambda: Block(conv(), nn.ReLU()), PIXELS, "ends in relu", True),
    "other gate": (lambda: Block(conv(), EcaModule(WIDTH)), PIXELS, "no squeeze-excite", True),
    "standardised": (lambda: Block(StdConv2d(WIDTH, WIDTH, 1)), PIXELS, "used through batch_norm, not as it is", True),
    "without weights": (lambda: Block(conv(), nn.BatchNorm2d(WIDTH, affine=False)), PIXELS, "no weight of its", True),
    "pooling of maxima": (lambda: Block(conv(), nn.MaxPool2d(3, 1, 1)), PIXELS, "ends in max_pool2d", True),
    "rotary": (Rotary, TOKENS, "its branch", False),
    "one layer": (Reparameterised, PIXELS, "linear", False),
    "a difference": (Mixed, TOKENS, r"a difference from the stream, F\(x\) - x", True),
    "used twice": (Elsewhere, TOKENS, "is used elsewhere too", True),
    "shared end": (SharedEnd, TOKENS, r"last.weight is shared with another branch", True),
    "tied": (Tied, TOKENS, r"mlp.2.weight is shared with another layer", True),
    "groups": (Groups, PIXELS, "different channels of one feature", False),
    "data-dependent shape": (Selected, TOKENS, "ends in __getitem__|split or merged by reshape", True),
    "parametrised": (
        lambda: Block(nn.utils.parametrizations.weight_norm(conv())),
        PIXELS,
        "is computed from 2 parameters",
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_refused_with_its_reason(case):
    make, shape, reason, residual = CASES[case]
    net = nn.Sequential(make())
    found = timestepper.discover(net, torch.randn(shape))
    assert not found.stages
    assert all(sum_.residual is residual for sum_ in found.refused)
    with pytest.raises(NoSitesError, match=reason) as error:
        timestepper.attach(net, example=torch.randn(shape))
    assert_untouched(net, error.value)


def test_the_rest_of_a_network_works():
    net = nn.Sequential(TokenMixer())
    found = timestepper.discover(net, torch.randn(TOKENS))
    assert list(found.errors) == ["0"]
    (sum_,) = found.refused
    assert "0.across.2 (linear) would take one step for every token, not for every channel" in sum_.reason
    assert sum_.residual
    assert found.share == 0.5


def test_of_nested_branches_the_inner_one_is_taken():
    found = timestepper.discover(nn.Sequential(Nested()), torch.randn(PIXELS))
    assert list(found.errors) == ["0.inner"]
    assert found.refused[0].reason == "its branch ends in another residual sum"


def test_a_wrong_rule_is_found_by_the_proof():
    """What the walk takes for linear need not be: here a module computes something else with its weight in view."""

    class Cheat(nn.Linear):
        def forward(self, x):
            return super().forward(x) / self.weight.detach().abs().mean()

    net = nn.Sequential(nn.Sequential(Cheating(Cheat(WIDTH, WIDTH))))
    found = timestepper.discover(net, torch.randn(TOKENS))
    assert not found.stages
    assert "proved wrong: relative error" in found.refused[0].reason


class Cheating(nn.Module):
    def __init__(self, last: nn.Module):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), last

    def forward(self, x):
        return x + self.last(torch.relu(self.first(x)))


# -- bad input ---------------------------------------------------------------------------------------------------------


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.inner.register_forward_pre_hook(lambda *_: None)

    def forward(self, x):
        x = x + self.inner(x)
        raise ValueError("no such luck")


@pytest.mark.parametrize(
    ("net", "example", "message"),
    [
        (nn.Sequential(Block(conv())), torch.randn(2, 5, 6, 6), r"Sequential fails on an example of .*5, 6, 6.* in 0"),
        (nn.Sequential(Block(conv())), (torch.randn(PIXELS), 3), r"fails on an example of .*int"),
        (Fails(), torch.randn(TOKENS), r"Fails fails on an example .*ValueError: no such luck; pass example="),
        (nn.Sequential(Block(conv())), None, r"Sequential says nothing of its input; pass example="),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(net, example, message):
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(MismatchError, match=message) as error:
        timestepper.attach(net, example=example)
    assert_untouched(net, error.value)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_network_without_sums():
    net = nn.Sequential(conv(), nn.ReLU(), conv())
    with pytest.raises(NoSitesError, match="its forward adds no two features") as error:
        timestepper.attach(net, example=torch.randn(PIXELS))
    assert_untouched(net, error.value)


def test_names_of_sites():
    net = nn.Sequential(Block(conv()), Block(conv()), Block(conv()))
    for options, sites in [
        ({"sites": "1"}, ["1"]),
        ({"sites": ["0", "2.last.*"]}, ["0", "2"]),
        ({"exclude": "[01]"}, ["2"]),
        ({"sites": "*", "exclude": "0"}, ["1", "2"]),
    ]:
        timestepper.attach(net, example=torch.randn(PIXELS), **options)
        found = timestepper.summary(net, (WIDTH, 6, 6))
        assert [site for stage in found.stages for site in stage.sites] == sites
        timestepper.detach(net)
    with pytest.raises(UnknownNameError, match="no site is called 'block'; there are 0, 1, 2"):
        timestepper.attach(net, example=torch.randn(PIXELS), sites="block")
    for wrong in (5, [5], iter("0")):
        with pytest.raises(UnknownNameError, match="sites= and exclude= take names of sites or patterns"):
            timestepper.attach(net, example=torch.randn(PIXELS), sites=wrong)
    with pytest.raises(NoSitesError, match="leave no site"):
        timestepper.attach(net, example=torch.randn(PIXELS), sites="0", exclude="0")


class OnTheGpu(TorchFunctionMode):
    """Where torch.set_default_device("cuda") was called, as far as it shows without one."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None and "device" not in kwargs:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        return func(*args, **kwargs)


@pytest.mark.parametrize("name", ["test_vit", "a network of transformers"])
def test_discovery_draws_on_the_cpu_whatever_the_default_device_is(name):
    if name == "test_vit":
        net = timm.create_model(name, img_size=32, patch_size=8, num_classes=5)
    else:
        bert = pytest.importorskip("transformers")
        config = bert.BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        net = bert.BertModel(config)
    before = timestepper.discover(net)
    with OnTheGpu():
        assert timestepper.discover(net) == before


def test_discovery_leaves_weights_buffers_hooks_and_random_numbers_alone():
    seen = []
    net = nn.Sequential(Block(conv(), nn.BatchNorm2d(WIDTH), nn.Dropout(0.5)))
    net[0].register_forward_hook(lambda *_: seen.append(1))
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    example = torch.randn(PIXELS)
    kept = example.clone()
    state = torch.get_rng_state()
    timestepper.discover(net, example)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(example, kept)
    assert not vars(example)
    assert not seen
    assert net.training
    assert net[0].last[1].training
    assert len(net[0]._forward_hooks) == 1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(vars(parameter) for parameter in net.parameters())


def test_very_deep_networks_do_not_overflow():
    net = nn.Sequential(*(Cheating(nn.Linear(WIDTH, WIDTH)) for _ in range(400)))
    assert len(timestepper.discover(net, torch.randn(TOKENS)).errors) == 400


def assert_untouched(net: nn.Module, error: TimestepperError) -> None:
    assert "\n" not in str(error)
    assert "controllers" not in dict(net.named_children())
    assert not timestepper.is_attached(net)
    assert not any(hasattr(type(module), "_original") for module in net.modules())


class Pyramid(nn.Module):
    """A lateral connection over residual blocks, whose upper end has a head of its own."""

    def __init__(self):
        super().__init__()
        self.block, self.lateral, self.top, self.head = Block(conv()), conv(), conv(), conv()

    def forward(self, x):
        top = self.top(torch.relu(self.block(x)))
        return self.lateral(x) + top, self.head(top)


def test_a_feature_pyramid_joins_scales():
    found = timestepper.discover(nn.Sequential(Pyramid()), torch.randn(PIXELS))
    assert list(found.errors) == ["0.block"]
    (sum_,) = found.refused
    assert sum_.reason.startswith("it joins scales, over other residual sums; the end of its branch")
    assert not sum_.residual
