import copy
import math
from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES
from torch import nn
from torch.nn import functional as F

import timestepper
from timestepper.equations import log_perturbation_bound
from timestepper.errors import StabilityError
from timestepper.models import CifarResNet
from timestepper.stability import measured_growth, open_chain, proposition_1
from timestepper.stability.bound import log_factor
from timestepper.stability.lipschitz import ways_through
from timestepper.stability.operators import batch_norm, parameters_of
from timestepper.stability.perturbation import KINDS


def moved(net, seed=1):
    """Weights and statistics away from their initial values, as after training."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(-1.5, 1.5, generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
            module.running_mean.uniform_(-0.5, 0.5, generator=generator)
    return net


@pytest.fixture(scope="module", params=["plain", "stepped", "folded", "without steps"])
def trained_bound(request, plain, stepped, digits):
    net = {"plain": plain, "folded": timestepper.fold(stepped)}.get(request.param, stepped)
    inputs = digits.test[0][:6].double()
    chain = open_chain(copy.deepcopy(net).double(), inputs, steps=request.param != "without steps")
    return chain, proposition_1(chain)


@pytest.mark.parametrize("size", [1e-4, 0.1, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_measured_growth_never_exceeds_the_bound_on_trained_networks(trained_bound, digits, kind, size):
    """Far perturbations too: the bound holds for all of them, not only near the features."""
    chain, bound = trained_bound
    growth = measured_growth(chain, kind, size=size, labels=digits.test[1][:6])
    assert 0 < growth.mean <= growth.end_to_end
    assert math.log(growth.end_to_end) <= bound.log_certified
    for block, grown in zip(bound.blocks, growth.blocks, strict=True):
        assert math.log(grown) <= block.log_certified
    assert bound.log <= bound.log_certified


@pytest.mark.parametrize(
    "family", ["timm resnet18", "timm resnet50", "timm resnext50", "torchvision resnet18", "cifar resnet20"]
)
def test_the_bound_holds_for_every_family_of_blocks(family):
    torch.manual_seed(0)
    net = timestepper.attach(moved(FAMILIES[family]()), "independent").double()
    chain = open_chain(net, torch.randn(1, 3, 32, 32, dtype=torch.float64))
    bound = proposition_1(chain)
    growth = measured_growth(chain, "power", size=1e-4, iterations=5)
    for block, grown in zip(bound.blocks, growth.blocks, strict=True):
        assert math.log(grown) <= block.log_certified
    assert bound.log > math.log(growth.end_to_end)


def test_power_iterated_growth_comes_close_to_the_bound_of_positive_blocks():
    """Positive convolutions stretch nearly the same direction most as the identity does: little is lost anywhere."""
    torch.manual_seed(2)
    net = moved(FAMILIES["cifar resnet20"]()).double()
    for block in net.layer1:
        block.conv1.weight.data.abs_()
        block.conv2.weight.data.abs_()
        for norm in (block.bn1, block.bn2):
            norm.weight.data.abs_()
            norm.bias.data.fill_(50.0)  # ReLU passes everything
    chain = open_chain(net, torch.randn(1, 3, 16, 16, dtype=torch.float64))
    bound = proposition_1(chain, tolerance=1e-8)
    growth = measured_growth(chain, "power", iterations=50, size=1e-6)
    for index in range(3):
        assert 0.8 < growth.blocks[index] / math.exp(bound.blocks[index].log) <= 1


def test_the_bound_is_equation_7_with_the_step_sizes_in_the_norms():
    torch.manual_seed(0)
    net = timestepper.attach(moved(FAMILIES["cifar resnet20"]()), "fixed(0.3)")
    inputs = torch.randn(1, 3, 16, 16)
    without, with_steps = (proposition_1(open_chain(net, inputs, steps=steps)) for steps in (False, True))
    norms = torch.tensor([block.branch for block in without.blocks])
    assert all(block.shortcut == 1 for block in without.blocks)
    expected = log_perturbation_bound(norms, torch.full_like(norms, 0.3))
    assert with_steps.log == pytest.approx(expected.item(), rel=1e-3)
    assert sum(with_steps.stages.values()) == pytest.approx(with_steps.log)
    assert without.log == pytest.approx(log_perturbation_bound(norms, torch.ones_like(norms)).item(), rel=1e-4)


def test_channel_wise_steps_enter_by_the_norm_and_not_by_their_mean():
    torch.manual_seed(0)
    net = timestepper.attach(moved(FAMILIES["cifar resnet20"]()), "independent")
    with torch.no_grad():
        for controller in net.controllers.values():
            for parameter in controller.parameters():
                parameter.fill_(-20.0)  # every step size is nearly 0 ...
                parameter[:, 0] = 20.0  # ... but that of one channel
    inputs = torch.randn(1, 3, 16, 16)
    chain = open_chain(net, inputs)
    block = proposition_1(chain).blocks[0]
    weight = parameters_of(chain.model)["layer1.0.conv2.weight"]
    bn2 = chain.model.layer1[0].bn2
    row = (weight[0] * bn2.weight[0] / (bn2.running_var[0] + bn2.eps).sqrt()).norm()
    first = block.layers["layer1.0.conv1"].estimate
    assert block.branch >= 0.9 * first * row.item()  # the mean step, 1/8, would give far less


def test_plain_attached_and_folded_networks_take_one_path(stepped, digits):
    inputs = digits.test[0][:2]
    attached = proposition_1(open_chain(stepped, inputs))
    folded = proposition_1(open_chain(timestepper.fold(stepped), inputs))
    assert attached.log == folded.log
    assert attached.log != pytest.approx(proposition_1(open_chain(stepped, inputs, steps=False)).log, rel=1e-3)


def test_506_layers_do_not_overflow():
    torch.manual_seed(0)
    net = CifarResNet(506, width=2)
    bound = proposition_1(open_chain(net, torch.randn(1, 3, 8, 8)), tolerance=1e-2)
    assert len(bound.blocks) == 252
    assert math.isfinite(bound.log)
    assert bound.log > 200


def test_a_projection_shortcut_counts_with_its_own_norm():
    torch.manual_seed(0)
    net = moved(FAMILIES["timm resnet18"]())
    bound = proposition_1(open_chain(net, torch.randn(1, 3, 32, 32)))
    block = next(block for block in bound.blocks if block.path == "layer2.0")
    assert block.shortcut == pytest.approx(block.layers["layer2.0.downsample.0"].estimate)
    assert block.log == pytest.approx(math.log(block.shortcut + block.branch))
    weight, norm = net.layer2[0].downsample[-2:]
    matrix = weight.weight.flatten(1) * (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]
    assert block.shortcut == pytest.approx(torch.linalg.matrix_norm(matrix, 2).item(), rel=1e-3)


class Odd(nn.Module):
    """A block whose middle layer can be anything."""

    def __init__(self, middle):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.middle = middle
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return x + self.last(self.middle(self.conv(x)))


class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x.mean((2, 3), keepdim=True))


class Doubled(nn.Module):
    """Sums, products with numbers, slices and padding, as functions."""

    def forward(self, x):
        x = torch.add(input=x, other=x.mul(-1.5)) - 3.0 * x
        return F.pad(x[:, :, 1:], (0, 0, 1, 0))


class Pieces(nn.Module):
    """A tensor taken apart and put together."""

    def forward(self, x):
        first, second = x.chunk(2, 1)
        left, right = torch.split(second, 1, dim=1)
        return F.pad(first - 5.0 * (left + right), (0, 0, 0, 0, 0, 2))


class Repeated(nn.Module):
    """A map of one channel, added to each of four."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(4, 1, 1)

    def forward(self, x):
        return x * 0.01 + self.one(x)


class Largest(nn.Module):
    def forward(self, x):
        values, _ = x.max(1, keepdim=True)
        return F.pad(30.0 * values, (0, 0, 0, 0, 0, 3))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(1, return_indices=True)

    def forward(self, x):
        values, _ = self.pool(x)
        return 9.0 * values


class ReadOut(nn.Module):
    def forward(self, x):
        return x - x.shape[1] * (x[0, 0, 0, 0].item() + torch.ones(4, 6, 6))


class InPlace(nn.Module):
    def forward(self, x):
        x.mul_(7.0)
        return x


class Weighted(nn.Module):
    def forward(self, x):
        return torch.add(x, x, alpha=9.0)


class Mirrored(nn.Module):
    def forward(self, x):
        return F.pad(x[:, :, 1:], (0, 0, 1, 0), mode="replicate")


class Picked(nn.Module):
    def forward(self, x):
        return x[:, [0, 0, 0, 0]]


class Net(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.blocks = nn.Sequential(Odd(middle), Odd(nn.ReLU()))

    def forward(self, x):
        return self.blocks(x).mean((2, 3))


@timestepper.adapters.register(Odd)
def _odd(block):
    return timestepper.adapters.Branch(convs=("conv",), last=("last",))


@pytest.mark.parametrize(
    "middle",
    [
        nn.Sequential(nn.BatchNorm2d(4), nn.LeakyReLU(2.0)),
        nn.Sequential(nn.ReLU(), nn.BatchNorm2d(4)),  # the batch norm stands alone
        Doubled(),
        Pieces(),
        Repeated(),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.AvgPool2d(3, stride=1, padding=1),
        nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        nn.SiLU(),
        nn.GELU(),
    ],
    ids=lambda middle: str(middle).replace("\n", ""),
)
@pytest.mark.parametrize("size", [1e-3, 1.0])
def test_every_rule_of_the_walk_is_a_bound(middle, size):
    torch.manual_seed(0)
    net = moved(Net(middle)).double()
    chain = open_chain(net, torch.randn(8, 4, 6, 6, dtype=torch.float64))
    bound = proposition_1(chain)
    growth = measured_growth(chain, "power", size=size)
    assert math.log(growth.blocks[0]) <= bound.blocks[0].log_certified


def constant(layer, size=6):
    """The Lipschitz constant that a layer counts with."""
    block = SimpleNamespace(block=nn.Sequential(layer), path="block")
    (way,) = ways_through(block, torch.randn(1, 4, size, size))
    return way.constant


@pytest.mark.parametrize(
    "layer",
    [
        *(nn.ReLU(), nn.ReLU6(), nn.Hardtanh(), nn.Tanh(), nn.Softplus(), nn.Sigmoid(), nn.SiLU(), nn.GELU()),
        *(nn.Hardswish(), nn.ELU(), nn.ELU(2.0), nn.LeakyReLU(), nn.LeakyReLU(2.0)),
    ],
    ids=str,
)
def test_an_activation_counts_with_its_largest_slope(layer):
    x = torch.linspace(-6, 6, 120_001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(layer(x).sum(), x)
    assert slopes.abs().max().item() - 1e-9 <= constant(layer) <= slopes.abs().max().item() + 0.01


@pytest.mark.parametrize(
    ("layer", "size", "expected"),
    [
        (nn.MaxPool2d(2), 6, 1.0),
        (nn.MaxPool2d(3, 2, 1), 6, 2.0),  # an input is in up to two windows per direction
        (nn.AvgPool2d(2), 6, 0.5),
        (nn.AvgPool2d(3, 2), 7, 2 / 3),
        (nn.AvgPool2d(2, ceil_mode=True), 7, 1.0),  # a window over the edge may hold one pixel
        (nn.AvgPool2d(2, 2, 1), 6, 1.0),
    ],
)
def test_pooling_counts_the_windows_of_an_input(layer, size, expected):
    assert constant(layer, size) == pytest.approx(expected)


class Turned(nn.Module):
    def forward(self, x):
        return x * -3.0


def test_a_negative_factor_counts_with_its_size():
    assert constant(Turned()) == 3.0


def test_a_block_without_a_shortcut_has_its_branch_s_factor():
    assert log_factor(0.0, 2.0) == pytest.approx(math.log(2))
    assert math.isfinite(log_factor(0.0, 0.0))
    assert log_factor(3.0, 2.0) == pytest.approx(math.log(5))


def test_each_of_the_three_factors_is_made_of_its_own_norms():
    chain = open_chain(moved(FAMILIES["cifar resnet20"]()), torch.randn(1, 3, 16, 16))
    block = proposition_1(chain, tolerance=0.5).blocks[0]  # far from converged, so that the three differ
    for kind, found in (("estimate", block.log), ("upper", block.log_certified), ("reshaped", block.log_reshaped)):
        assert found == pytest.approx(math.log(1 + math.prod(getattr(norm, kind) for norm in block.layers.values())))
    assert block.log < block.log_certified
    assert block.log_reshaped != pytest.approx(block.log, rel=1e-3)


def test_padding_same_is_the_padding_that_keeps_the_size():
    for dilation in (1, 2):
        layer = nn.Conv2d(4, 4, 3, padding="same", dilation=dilation)
        (way,) = ways_through(SimpleNamespace(block=nn.Sequential(layer), path="block"), torch.randn(1, 4, 6, 6))
        assert way.layers[0].geometry.padding == (dilation, dilation)


def test_a_batch_norm_scales_by_its_variance_and_its_epsilon():
    norm = batch_norm("norm", nn.BatchNorm2d(2, eps=1.0))
    parameters = {"norm.running_var": torch.tensor([3.0, 8.0]), "norm.weight": torch.tensor([1.0, -6.0])}
    assert norm.weight(parameters).flatten().tolist() == pytest.approx([0.5, -2.0])


def test_a_batch_norm_is_folded_into_the_convolution_before_it():
    net = moved(FAMILIES["cifar resnet20"]())
    chain = open_chain(net, torch.randn(1, 3, 16, 16))
    identity, branch = ways_through(chain.links[0], chain.features[0])
    assert identity.layers == ()
    assert [(layer.path, layer.norm) for layer in branch.layers] == [
        ("layer1.0.conv1", "layer1.0.bn1"),
        ("layer1.0.conv2", "layer1.0.bn2"),
    ]
    assert branch.layers[0].geometry.size == (16, 16)


UNKNOWN = {
    "gate": (Gate(), "blocks.0.middle"),
    "in place": (InPlace(), "blocks.0.middle: the norm of mul_"),
    "largest": (Largest(), "blocks.0.middle: the norm of max"),
    "indices": (Pooled(), "blocks.0.middle.pool: the norm of MaxPool2d"),
    "read out": (ReadOut(), "blocks.0.middle: the norm of item"),
    "weighted": (Weighted(), "blocks.0.middle: the norm of add"),
    "mirrored": (Mirrored(), "blocks.0.middle: the norm of pad"),
    "picked": (Picked(), "blocks.0.middle: the norm of getitem"),
    "dilation": (nn.MaxPool2d(2, 1, padding=1, dilation=2), "blocks.0.middle: the norm of MaxPool2d with dilation"),
    "divisor": (
        nn.AvgPool2d(3, 1, padding=1, divisor_override=2),
        "blocks.0.middle: the norm of AvgPool2d with a divisor",
    ),
    "uneven": (nn.Conv2d(4, 4, 2, padding="same"), "blocks.0.middle pads unevenly"),
    "group norm": (nn.GroupNorm(2, 4), "blocks.0.middle: the norm of GroupNorm"),
    "reflection": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), "blocks.0.middle pads with 'reflect'"),
    "no statistics": (
        nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False)),
        "blocks.0.middle.0 keeps no running statistics",
    ),
}


@pytest.mark.parametrize(("middle", "where"), UNKNOWN.values(), ids=UNKNOWN)
def test_layers_without_a_known_norm_are_named(middle, where):
    chain = open_chain(Net(middle), torch.randn(2, 4, 6, 6))
    with pytest.raises(StabilityError, match=where):
        proposition_1(chain)
    assert measured_growth(chain, "random").end_to_end > 0  # the measured figures need no norm


@pytest.mark.parametrize("family", ["timm seresnet18", "timm seresnet50"])
def test_squeeze_excite_is_refused_by_name(family):
    chain = open_chain(FAMILIES[family](), torch.randn(1, 3, 32, 32))
    with pytest.raises(StabilityError, match=r"layer1\.0\.se.*--no-bound"):
        proposition_1(chain)


@pytest.mark.parametrize("family", ["densenet", "cliquenet"])
def test_networks_that_are_no_chain_of_residual_blocks_are_refused(family):
    with pytest.raises(StabilityError, match=r"only .*residual blocks"):
        open_chain(FAMILIES[family](), torch.randn(1, 3, 32, 32))


def test_a_block_with_several_outputs_is_refused():
    net = Net(nn.ReLU())
    net.blocks[0].register_forward_hook(lambda block, args, output: (output, output))
    with pytest.raises(StabilityError, match=r"blocks\.0 gives a tuple, not one feature map"):
        open_chain(net, torch.randn(1, 4, 6, 6))


def test_bad_weights_and_inputs_are_said_in_one_line():
    net = FAMILIES["cifar resnet20"]()
    with pytest.raises(StabilityError, match=r"cannot run on inputs of shape \(1, 1, 16, 16\)"):
        open_chain(net, torch.randn(1, 1, 16, 16))
    net.layer2[0].conv1.weight.data[0, 0, 0, 0] = math.nan
    with pytest.raises(StabilityError, match=r"layer2\.0\.conv1\.weight holds NaN"):
        open_chain(net, torch.randn(1, 3, 16, 16))


def test_what_fails_without_a_word_is_told_by_its_type():
    class Fails(nn.Module):
        def forward(self, x):
            raise AssertionError  # as a bare assert does outside of pytest, which gives it a text

    with pytest.raises(StabilityError, match=r"Net cannot run on inputs of .*\(AssertionError\)"):
        open_chain(Net(Fails()), torch.randn(1, 4, 6, 6))
    link = open_chain(Net(nn.ReLU()), torch.randn(1, 4, 6, 6)).links[0]
    link.block.middle = Fails()
    with pytest.raises(StabilityError, match=r"cannot see through .* \(AssertionError\)"):
        ways_through(link, torch.randn(1, 4, 6, 6))


def test_the_network_is_left_as_it_was(stepped, digits):
    stepped.train()
    before = copy.deepcopy(stepped.state_dict())
    chain = open_chain(stepped, digits.test[0][:2])
    proposition_1(chain)
    for kind in KINDS:
        measured_growth(chain, kind)
    assert stepped.training
    assert all(torch.equal(value, before[name]) for name, value in stepped.state_dict().items())
    assert all(parameter.requires_grad for parameter in stepped.parameters())
    stepped.eval()
