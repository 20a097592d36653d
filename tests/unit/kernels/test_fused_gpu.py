"""The kernels on a CUDA device, against float64, and inside CUDA graphs."""

import kernel_errors
import pytest
import torch

import timestepper
from timestepper.api import find_steps
from timestepper.models import CifarResNet

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda")


@pytest.fixture
def _poisoned():
    """New memory is filled with NaN, so an element that no kernel writes shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_poisoned")
@pytest.mark.parametrize("network", kernel_errors.STAGES)
def test_controllers_agree_with_float64(network):
    for name, error in kernel_errors.controller_errors(kernel_errors.STAGES[network], DEVICE).items():
        assert error < 1e-5, name


@pytest.mark.usefixtures("_poisoned")
def test_descriptors_agree_with_float64():
    for name, error in kernel_errors.describe_errors(DEVICE).items():
        assert error < 1e-6, name


@pytest.mark.usefixtures("_poisoned")
def test_scaled_parameters_agree_with_float64():
    for name, error in kernel_errors.scale_errors(DEVICE).items():
        assert error < 1e-6, name


@pytest.fixture
def _smooth(monkeypatch):
    """What amplifies a rounding is off: ReLU's kink, and TF32, which rounds 1e-7 next to its threshold to 1e-3."""
    monkeypatch.setattr("timestepper.models.cifar_resnet.F.relu", torch.nn.functional.silu)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def attached() -> torch.nn.Module:
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(14)).to(DEVICE)
    for parameter in net.controllers.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net


@pytest.mark.usefixtures("_smooth")
def test_networks_agree_and_fold_exactly():
    images = torch.randn(8, 3, 32, 32, device=DEVICE)
    found = {}
    for path in (None, False):
        net = attached()
        net.controllers.fused = path
        logits = net(images)
        logits.square().sum().backward()
        found[path] = [logits.detach(), *(parameter.grad for parameter in net.parameters())]
    for mine, plain in zip(found[None], found[False], strict=True):
        assert kernel_errors.relative_error(mine, plain.double().cpu()) < 1e-4
    net = attached().eval()
    with torch.no_grad():
        assert torch.equal(timestepper.fold(net)(images), net(images))


def test_graph_follows_the_weights_and_survives_other_networks():
    """A recorded step reads the parameters anew at each replay, whatever else ran in between."""
    net = attached().eval()
    with torch.no_grad():
        for _ in range(2):
            timestepper.step_sizes(net)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = find_steps(net).step_sizes().values()
        for _ in range(100):
            timestepper.step_sizes(attached())
        for parameter in net.parameters():
            parameter.mul_(1.5)
        graph.replay()
        for found, expected in zip(recorded, timestepper.step_sizes(net).values(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.usefixtures("_smooth")
def test_compiled_with_cuda_graphs_by_the_compiler():
    net, other = attached(), attached()
    images = torch.randn(8, 3, 32, 32, device=DEVICE)
    compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        net.zero_grad()
        other.zero_grad()
        compiled(images).square().sum().backward()
        other(images).square().sum().backward()
    for mine, expected in zip(net.parameters(), other.parameters(), strict=True):
        assert kernel_errors.relative_error(mine.grad, expected.grad.double().cpu()) < 1e-3
