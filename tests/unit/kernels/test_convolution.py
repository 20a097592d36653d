"""Our 3x3 convolutions: kernels in Triton's interpreter, operators, and what switching a model to them changes."""

import copy
import pickle

import pytest
import torch
from interpreter import run_interpreted
from torch import nn
from torch.nn import functional as F

import timestepper
from timestepper.engine.runtime import Runtime
from timestepper.kernels import convolution, ops
from timestepper.models import CifarResNet, NormFreeResNet

INTERPRETED = """
import torch
import kernel_errors
from timestepper.kernels import convolution
assert convolution.INTERPRETED
torch.use_deterministic_algorithms(True)  # fills new memory with NaN, so an element that is not written shows
cpu = torch.device("cpu")
def check(shape, channels_last=True):  # batch, height, width, input and output channels
    for name, error in kernel_errors.convolution_errors(shape, cpu, torch.float32, channels_last).items():
        assert error < 1e-6, (shape, name, error)
check((1, 7, 9, 16, 16))
none = torch.zeros(0, 16, 8, 8, requires_grad=True)  # no kernel for no images
weight = torch.zeros(16, 16, 3, 3, requires_grad=True)
convolution.conv3x3(none, weight).sum().backward()
assert none.grad.shape == none.shape
assert weight.grad.abs().sum() == 0
check((3, 8, 8, 16, 32), channels_last=False)
check((1, 9, 7, 48, 16), channels_last=False)
check((2, 1, 1, 32, 48))
x, weight, gradient = kernel_errors.convolution_case((1, 3, 8, 64, 64), cpu, torch.float32)
exact = kernel_errors.exact_convolution(x, weight, gradient)
assert kernel_errors.relative_error(convolution.conv3x3(x, weight), exact[0]) < 1e-6
assert kernel_errors.relative_error(convolution.conv3x3_input_gradient(gradient, weight), exact[1]) < 1e-6
# every way to divide the work gives the same: pixels of a row, pieces of its window, blocks, slices
for slices, way in enumerate([(2, 2, 2, 16, 16), (2, 1, 4, 64, 16), (1, 1, 9, 32, 16), (1, 4, 1, 16, 16)], 1):
    blocks = convolution.Blocks(*way, warps=4, slices=slices)
    convolution.CONVOLVE[16] = convolution.WEIGHT_GRADIENT[16] = blocks
    check((1, 5, 7, 16, 16))
"""


@pytest.mark.slow
def test_kernels_agree_with_float64_in_the_interpreter():
    run_interpreted(INTERPRETED)


def images(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def test_gradients_are_the_derivative():
    x, weight = images(2, 16, 3, 2).requires_grad_(), torch.randn(16, 16, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(convolution.conv3x3, (x, weight), fast_mode=True)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_operators_keep_pytorchs_contract(layout):
    """Strides too: what the compiler expects is what comes, and it has nothing to copy."""
    x, gradient = images(2, 16, 5, 4), images(2, 32, 5, 4)
    weight = torch.randn(32, 16, 3, 3, dtype=torch.float64).contiguous(memory_format=layout)
    torch.library.opcheck(convolution.conv3x3, (x.requires_grad_(), weight.requires_grad_()))
    torch.library.opcheck(convolution.conv3x3_input_gradient, (gradient, weight.detach()))
    torch.library.opcheck(convolution.conv3x3_weight_gradient, (gradient, x.detach(), weight.detach()))


def test_frozen_parts_get_no_gradient(monkeypatch):
    monkeypatch.setattr(convolution, "conv3x3_weight_gradient", None)
    x, weight = images(1, 16, 4, 4).requires_grad_(), torch.randn(16, 16, 3, 3, dtype=torch.float64)
    convolution.conv3x3(x, weight).sum().backward()
    assert x.grad is not None


def test_only_layers_that_fit_are_switched():
    def layer(*channels: int, **options) -> nn.Conv2d:
        return nn.Conv2d(*channels, **{"kernel_size": 3, "padding": 1, "bias": False} | options)

    fitting = [layer(16, 16), layer(48, 64), layer(16, 16, bias=True)]
    others = [
        layer(3, 16),
        layer(16, 128),
        layer(16, 16, stride=2),
        layer(16, 16, groups=2),
        layer(16, 16, padding=0),
        layer(16, 16, padding="same"),
        layer(16, 16, dilation=2, padding=2),
        layer(16, 16, kernel_size=1, padding=0),
        layer(16, 16, padding_mode="circular"),
    ]
    assert convolution.speed_up(nn.ModuleList(fitting + others)) == 3
    assert all("_conv_forward" in vars(layer) for layer in fitting)
    assert not any("_conv_forward" in vars(layer) for layer in others)


def test_switched_model_keeps_class_keys_copies_and_values():
    torch.manual_seed(0)
    plain = CifarResNet(14)
    fast = copy.deepcopy(plain)
    assert convolution.speed_up(fast) == 4 + 3 + 3
    assert list(fast.state_dict()) == list(plain.state_dict())
    assert {type(layer) for layer in fast.modules()} == {type(layer) for layer in plain.modules()}
    x = torch.randn(2, 3, 8, 8)
    for model in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert torch.equal(model(x), plain(x))  # on a CPU and in float32 it is PyTorch's own


@pytest.fixture
def counted(monkeypatch) -> list:
    """The operators on a CPU too, where they run PyTorch's convolution; a list of the shapes that they were given."""
    calls = []

    def count(x, weight):
        calls.append(tuple(x.shape))
        return convolution_operator(x, weight)

    convolution_operator = convolution.conv3x3
    monkeypatch.setattr(convolution, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(convolution, "conv3x3", count)
    return calls


def test_used_under_bf16_autocast_alone(counted):
    layer = nn.Conv2d(16, 16, 3, padding=1, bias=False)
    convolution.speed_up(layer)
    x = images(2, 16, 4, 4, dtype=torch.float32)
    layer(x)
    with torch.autocast("cpu", torch.float16):
        layer(x)
    assert counted == []
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        assert torch.equal(y, F.conv2d(x, layer.weight, padding=1))
        assert y.is_contiguous(memory_format=torch.channels_last)
        layer(x[0])  # without a batch
    assert len(counted) == 1
    y.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_a_bias_is_added_and_learns(counted):
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3, padding=1)
    x = images(2, 16, 4, 4, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        layer(x).float().square().sum().backward()
        wanted, layer.bias.grad = layer.bias.grad, None
        convolution.speed_up(layer)
        y = layer(x)
        torch.testing.assert_close(y, F.conv2d(x, layer.weight, layer.bias, padding=1), rtol=2e-2, atol=1e-2)
        assert y.is_contiguous(memory_format=torch.channels_last)
        y.float().square().sum().backward()
    assert len(counted) == 1
    torch.testing.assert_close(layer.bias.grad, wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("network", [CifarResNet, NormFreeResNet])
def test_attached_and_folded(counted, network):
    """Step sizes reach the switched layers, and folding gives the same network without them."""
    torch.manual_seed(0)
    model = network(8)
    net = timestepper.attach(model).eval()
    keys = list(net.state_dict())
    convolution.speed_up(net)
    x = images(2, 3, 8, 8, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(timestepper.fold(net)(x), net(x))
    assert len(counted) == 2 * (2 + 1 + 1)
    assert list(net.state_dict()) == keys
    assert timestepper.detach(net) is model
    timestepper.attach(model)  # once more, on switched layers


@pytest.mark.filterwarnings("ignore")
def test_compiles_without_breaks_and_gives_the_same_gradients(monkeypatch):
    monkeypatch.setattr(convolution, "DEVICES", ("cuda", "cpu"))
    torch.manual_seed(0)
    net = CifarResNet(8).to(memory_format=torch.channels_last)
    convolution.speed_up(net)
    x = images(2, 3, 8, 8, dtype=torch.float32)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(net, fullgraph=True, backend=backend)(x)
        compiled.float().square().sum().backward()
        mine = [parameter.grad.clone() for parameter in net.parameters()]
        net.zero_grad()
        net(x).float().square().sum().backward()
    assert str(graphs[0].graph).count("timestepper.conv3x3") == 2 + 1 + 1
    for found, parameter in zip(mine, net.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)


CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"device": torch.device("cpu")}, "there is no CUDA device"),
        ({"precision": "tf32"}, "the precision is tf32, not bf16"),
        ({"channels_last": False}, "the layout is not channels-last"),
        ({}, "no layer has 3x3 filters, stride 1 and at most 64 channels, a multiple of 16"),
    ],
)
def test_runtime_says_why_not(options, reason, monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: module)
    monkeypatch.setattr(ops, "TRITON", True)
    told = []
    settings = {"device": CUDA, "precision": "bf16", "channels_last": True} | options
    runtime = Runtime(**settings, fast_convolutions=True, tell=told.append)
    runtime.place(nn.Conv2d(3, 16, 3))
    assert told == [f"no fast convolutions: {reason}; PyTorch's convolutions are used"]


def test_runtime_switches_the_model(monkeypatch):
    monkeypatch.setattr(nn.Module, "to", lambda module, *_, **__: module)
    monkeypatch.setattr(ops, "TRITON", True)
    told = []
    model = Runtime(CUDA, "bf16", channels_last=True, fast_convolutions=True, tell=told.append).place(CifarResNet(8))
    assert told == []
    assert sum("_conv_forward" in vars(layer) for layer in model.modules()) == 4
    other = Runtime(CUDA, "bf16", channels_last=True).place(CifarResNet(8))
    assert not any("_conv_forward" in vars(layer) for layer in other.modules())


def tables() -> list:
    gradients = [("weight_gradient", channels, blocks) for channels, blocks in convolution.WEIGHT_GRADIENT.items()]
    return [("convolve", channels, blocks) for channels, blocks in convolution.CONVOLVE.items()] + gradients


@pytest.mark.parametrize(("name", "channels", "blocks"), tables())
@pytest.mark.skipif(convolution.INTERPRETED, reason="interpreted kernels cannot be compiled")
def test_kernels_compile_for_a_gpu_with_wide_loads_and_tensor_cores(name, channels, blocks):
    pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from timestepper.kernels import triton_convolution

    shapes = {"HEIGHT": 8, "WIDTH": 8, "INPUTS": channels, "OUTPUTS": channels, "BLOCK_IN": channels}
    work = {"PIXELS": blocks.pixels, "SPAN": blocks.span, "TOGETHER": blocks.together, "HELD": blocks.held}
    constants = shapes | work | {"BLOCK_OUT": blocks.outputs, "BLOCK_ROWS": blocks.rows}
    images = {"source": "*bf16", "weight": "*bf16", "target": "*bf16", "rows": "i32"}
    if name == "convolve":
        strides = {"OUTPUT_STRIDE": 9 * channels, "INPUT_STRIDE": 1, "DOWN_STRIDE": 3 * channels}
        constants |= strides | {"RIGHT_STRIDE": channels, "ORIGIN": 0}
    else:
        images = {"source": "*bf16", "gradient": "*bf16", "partial": "*fp32", "rows": "i32", "blocks": "i32"}
    source = ASTSource(
        getattr(triton_convolution, name),
        images | dict.fromkeys(constants, "constexpr"),
        constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in range(3)},
    )
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    code = compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert "wgmma.mma_async" in code or "mma.sync" in code
    loads = [line for line in code.splitlines() if "ld.global" in line or ("cp.async.c" in line and "global" in line)]
    assert loads
    assert all(".v4." in line or ", 0x10, " in line for line in loads)
