"""Our 3x3 convolutions on a CUDA device: every layer of a CIFAR ResNet against float64, compiled, in CUDA graphs."""

import copy
import re

import kernel_errors
import pytest
import torch
from torch.nn import functional as F

from timestepper.engine.runtime import Runtime
from timestepper.models import CifarResNet

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda")
LAYERS = [(batch, side, side, c, c) for batch in (64, 128) for side, c in ((32, 16), (16, 32), (8, 64))]
ODD = [(1, 7, 9, 16, 16), (3, 8, 8, 16, 32), (1, 9, 7, 48, 16), (3, 5, 1, 32, 48), (500, 8, 8, 64, 64)]


@pytest.fixture(autouse=True)
def _exact():
    """New memory is filled with NaN, so an element that no kernel writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("shape", LAYERS + ODD)
def test_kernels_are_as_exact_as_bf16_allows(shape, channels_last):
    """And as exact as the library: what both lose is the rounding of the result."""
    case = kernel_errors.convolution_case(shape, DEVICE, torch.bfloat16, channels_last)
    exact = kernel_errors.exact_convolution(*case)
    mine = kernel_errors.convolution_results(*case)
    library = kernel_errors.convolution_results(*case, convolve=lambda x, weight: F.conv2d(x, weight, padding=1))
    for found, other, right in zip(mine, library, exact, strict=True):
        assert found.dtype == torch.bfloat16
        assert kernel_errors.relative_error(found, right) < max(
            2.5e-3, 1.1 * kernel_errors.relative_error(other, right)
        )
    assert mine[2].stride() == case[1].stride()


@pytest.mark.parametrize("shape", LAYERS)
def test_the_same_bits_twice(shape):
    case = kernel_errors.convolution_case(shape, DEVICE, torch.bfloat16)
    for first, second in zip(
        kernel_errors.convolution_results(*case), kernel_errors.convolution_results(*case), strict=True
    ):
        assert torch.equal(first, second)


def placed(model: CifarResNet, fast: bool, **options) -> CifarResNet:
    told = []
    runtime = Runtime(DEVICE, "bf16", channels_last=True, fast_convolutions=fast, tell=told.append, **options)
    runtime.place(model)
    assert told == []
    return model


def gradients(model, images) -> list[torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(images)
    logits.float().square().sum().backward()
    return [logits.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def networks():
    """A network three times: with our convolutions, with the library's, and the latter in float64."""
    torch.manual_seed(0)
    model = CifarResNet(14)
    exact = copy.deepcopy(model).double().to(DEVICE)
    images = torch.randn(64, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
    return placed(copy.deepcopy(model), True), placed(model, False), exact, images


def assert_as_exact(found, usual, exact, images):
    """Two ways to round differ from each other by more than either from float64 need say; so both are held to that."""
    logits = exact(images.double())
    logits.square().sum().backward()
    right = [logits.detach(), *(parameter.grad for parameter in exact.parameters())]
    for mine, other, wanted in zip(found, usual, right, strict=True):
        error, allowed = (kernel_errors.relative_error(value, wanted.cpu()) for value in (mine, other))
        assert error < 2 * allowed + 1e-2


def test_network_is_as_exact_as_with_the_library():
    fast, plain, exact, images = networks()
    assert_as_exact(gradients(fast, images), gradients(plain, images), exact, images)


def test_compiled_as_one_graph_and_without_layout_copies():
    from torch._inductor.utils import run_and_get_code

    fast, plain, exact, images = networks()
    compiled = torch.compile(fast, fullgraph=True, dynamic=False)
    found, code = run_and_get_code(gradients, compiled, images)
    assert_as_exact(found, gradients(plain, images), exact, images)
    text = "\n".join(code)
    assert text.count("torch.ops.timestepper.conv3x3.default(") == 4 + 3 + 3
    assert text.count("torch.ops.timestepper.conv3x3_weight_gradient.default(") == 4 + 3 + 3
    copies = set(re.findall(r"triton_\w+_fused_(?:clone|copy|as_strided)_\d+\b", text))
    assert len(copies) <= 1  # of the gradient that comes from the average over the image


def test_in_a_cuda_graph():
    """A recorded step follows its input and gives what a step without a graph gives."""
    fast, _, _, images = networks()
    fast.eval()  # no running statistics between two calls
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            gradients(fast, images)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        recorded = gradients(fast, images)
    images.copy_(torch.randn_like(images))
    graph.replay()
    torch.cuda.synchronize()
    found = [value.clone() for value in recorded]
    for mine, expected in zip(found, gradients(fast, images), strict=True):
        assert kernel_errors.relative_error(mine, expected.double().cpu()) < 1e-2
