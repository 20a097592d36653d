"""Each equation against an independent statement of it."""

import math

import pytest
import torch
from torch import nn

import timestepper
from timestepper import equations
from timestepper.models import DenseNet


def test_residual_step_is_an_euler_step():
    y = 1.0
    for _ in range(1000):
        y = equations.residual_step(y, lambda value: -4 * value, h=1e-3)
    assert y == pytest.approx(math.exp(-4), rel=1e-2)


def test_euler_growth_and_radius_agree_on_stability():
    assert equations.euler_growth(0.25, -4, 10) == 0
    assert equations.euler_growth(0.6, -4, 10) == pytest.approx(1.4**10)
    assert equations.euler_radius(0.5, torch.tensor([-4 + 0j, -1 + 1j])) == pytest.approx(1)
    assert equations.euler_radius(0.6, torch.tensor([-4 + 0j])) > 1


def test_the_step_grows_where_the_error_is_small():
    assert equations.rkf_step_size(0.1, error=1e-6, tolerance=1e-6) == pytest.approx(0.09)
    assert equations.rkf_step_size(0.1, error=1e-6, tolerance=32e-6, factor=1) == pytest.approx(0.2)
    assert equations.local_error(1.0, 1.5) == 0.5


def test_the_bound_is_the_logarithm_of_the_product():
    norms, steps = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.5, 0.1])
    assert equations.log_perturbation_bound(norms, steps).exp() == pytest.approx(2 * 2 * 1.3)
    assert equations.log_perturbation_bound(torch.full((506,), 1e3), torch.ones(506)).isfinite()
    assert equations.log_perturbation_bound(torch.full((506,), 1e-9), torch.ones(506)) == pytest.approx(506e-9)


def test_the_two_parts_of_the_gradient_make_the_whole():
    y = torch.randn(5, dtype=torch.float64, requires_grad=True)
    matrix = torch.randn(5, 5, dtype=torch.float64)
    final = y + torch.tanh(matrix @ y)
    gradient = torch.randn(5, dtype=torch.float64)
    whole = torch.autograd.grad(final, y, gradient)[0]
    identity, residual = equations.backpropagated(
        gradient, lambda g: torch.autograd.grad(torch.tanh(matrix @ y), y, g)[0]
    )
    torch.testing.assert_close(identity + residual, whole)


def test_evolution_time_sums_over_depth():
    assert equations.evolution_time(torch.tensor([[0.5, 0.1], [0.25, 0.2]])).tolist() == pytest.approx([0.75, 0.3])


def test_the_descriptor_averages_over_inputs():
    weight = torch.arange(2 * 3 * 2 * 2, dtype=torch.float32).reshape(2, 3, 2, 2)
    expected = [
        (weight[o, 0, i, j] + weight[o, 1, i, j] + weight[o, 2, i, j]) / 3
        for o in (0, 1)
        for i in (0, 1)
        for j in (0, 1)
    ]
    assert equations.descriptor(weight).tolist() == pytest.approx([e.item() for e in expected])


def test_the_visible_descriptor_has_unit_size_and_tells_its_scale():
    described = 1e-3 * torch.randn(5, 100, generator=torch.Generator().manual_seed(0))
    described[2] *= 10
    visible = equations.visible_descriptor(described)
    assert visible.shape == (5, 101)
    assert visible[:, :100].square().mean() == pytest.approx(1)
    assert visible[2, 100].exp() == pytest.approx(described[2].square().mean().sqrt())
    torch.testing.assert_close(visible[:, :100], equations.visible_descriptor(7 * described)[:, :100])
    assert equations.visible_descriptor(torch.zeros(2, 3)).isfinite().all()


def test_weights_of_zeros_leave_every_gradient_of_the_visible_descriptor_finite():
    torch.manual_seed(0)
    model = DenseNet(10, num_classes=5)
    nn.init.zeros_(model.block1[0].conv.weight)
    net = timestepper.attach(model, descriptor="visible")
    net(torch.randn(2, 3, 16, 16)).sum().backward()
    assert [name for name, parameter in net.named_parameters() if not parameter.grad.isfinite().all()] == []


def test_the_visible_descriptor_of_weights_that_are_not_zero_is_that_of_a_root_clamped_afterwards():
    described = torch.randn(50, 100, generator=torch.Generator().manual_seed(0))
    described *= 10 ** torch.linspace(-11, 3, 50)[:, None]
    for values in (described, described.double(), described[:3]):
        scale = values.square().mean(1, keepdim=True).sqrt().clamp_min(1e-12)
        whole = values.square().mean().sqrt().clamp_min(1e-12)
        assert torch.equal(equations.visible_descriptor(values), torch.cat([values / whole, scale.log()], 1))


@pytest.mark.parametrize("length", [1, 4])
def test_the_lstm_is_an_lstm(length):
    """torch's own has two biases per gate and the same order of gates."""
    torch.manual_seed(0)
    reference = nn.LSTM(6, 6).double()
    x = torch.randn(length, 6, dtype=torch.float64)
    weights = dict(reference.named_parameters())
    bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    ours = equations.lstm(x, weights["weight_ih_l0"], weights["weight_hh_l0"], bias)
    torch.testing.assert_close(ours, reference(x)[0])


def test_transforms_stay_in_their_ranges():
    torch.manual_seed(0)
    x = equations.input_transform(torch.randn(3, 10), torch.randn(4, 10), torch.randn(4))
    assert x.shape == (3, 4)
    assert (x >= 0).all()
    assert (x > 0).any()
    dt = equations.output_transform(x, torch.randn(8, 4), torch.randn(8))
    assert dt.shape == (3, 8)
    assert ((dt > 0) & (dt < 1)).all()


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5)])
def test_the_stepped_forward_multiplies_channels(shape):
    y, branch, dt = torch.randn(shape), torch.randn(shape), torch.tensor([0.1, 0.2, 0.3])
    out = equations.stepped_forward(y, branch, dt)
    for channel in range(3):
        torch.testing.assert_close(out[:, channel], y[:, channel] + branch[:, channel] * dt[channel])


def test_table_1_on_resnet_50():
    layers, channels = [3, 4, 6, 3], [256, 512, 1024, 2048]
    assert equations.independent_complexity(layers, channels) == 15104
    squares = [c * c for c in channels]
    two_fc = sum(length * square / 8 * 2.25 for length, square in zip(layers, squares, strict=True))
    assert equations.two_fc_complexity(layers, channels, 1.25, 8) == two_fc
    assert equations.lstm_complexity(channels, 1.25, 8) == sum(square / 8 * (1 + 1 + 1.25) for square in squares)
