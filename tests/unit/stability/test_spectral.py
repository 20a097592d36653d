from dataclasses import astuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from timestepper.stability.norms import layer_norms, warm_estimates
from timestepper.stability.operators import Operator
from timestepper.stability.spectral import (
    Geometry,
    adjoint,
    apply,
    operator_norms,
    reshaped_norms,
    upper_bounds,
)


def dense(weight, geometry):
    """The operator written out as a matrix, from its action on every unit vector."""
    channels = weight.shape[1] * geometry.groups
    count = channels * geometry.size[0] * geometry.size[1]
    units = torch.eye(count, dtype=weight.dtype).reshape(count, channels, *geometry.size)
    outputs = F.conv2d(units, weight, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return outputs.reshape(count, -1).T


CASES = {
    "same size": (6, 4, (3, 3), Geometry((8, 8), padding=(1, 1))),
    "stride 2": (6, 4, (3, 3), Geometry((8, 8), (2, 2), (1, 1))),
    "stride 2, odd size": (6, 4, (3, 3), Geometry((7, 9), (2, 2), (1, 1))),
    "groups": (8, 8, (3, 3), Geometry((6, 5), padding=(1, 1), groups=4)),
    "depthwise, stride 2": (8, 8, (3, 3), Geometry((6, 6), (2, 2), (1, 1), groups=8)),
    "dilation": (3, 4, (3, 3), Geometry((9, 9), padding=(2, 2), dilation=(2, 2))),
    "no padding": (3, 4, (3, 3), Geometry((6, 6))),
    "all of it": (6, 4, (5, 3), Geometry((9, 7), (2, 1), (1, 2), (2, 1), 2)),
    "kernel larger than image": (3, 3, (7, 7), Geometry((4, 4), padding=(3, 3))),
    "stride larger than kernel": (3, 4, (2, 2), Geometry((9, 9), (3, 3))),
    "1x1": (7, 5, (1, 1), Geometry()),
}


def weights_of(outputs, inputs, kernel, geometry, seed=0, layers=3):
    generator = torch.Generator().manual_seed(seed)
    shape = (layers, outputs, inputs // geometry.groups, *kernel)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_power_iteration_finds_the_norm_of_the_dense_operator(case):
    weights, geometry = weights_of(*case), case[-1]
    norms, vectors = operator_norms(weights, geometry, tolerance=1e-8, iterations=5000)
    exact = torch.stack([torch.linalg.matrix_norm(dense(weight, geometry), 2) for weight in weights])
    torch.testing.assert_close(norms, exact, rtol=1e-4, atol=0)
    assert (norms <= exact * (1 + 1e-12)).all()
    reached = apply(weights, vectors, geometry).flatten(1).norm(dim=1) / vectors.flatten(1).norm(dim=1)
    torch.testing.assert_close(reached, norms)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_adjoint_is_the_transpose(case):
    weights, geometry = weights_of(*case), case[-1]
    inputs = torch.randn(3, case[1], *geometry.size, dtype=torch.float64)
    outputs = torch.randn_like(apply(weights, inputs, geometry))
    forth = (apply(weights, inputs, geometry) * outputs).sum((1, 2, 3))
    back = (inputs * adjoint(weights, outputs, geometry)).sum((1, 2, 3))
    torch.testing.assert_close(forth, back)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(list(CASES.values())),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1.0, 5.0]),  # how much the taps agree: from noise to a blur, whose norm is at frequency 0
)
def test_the_upper_bound_is_never_below_the_norm(case, seed, common):
    weights, geometry = weights_of(*case, seed=seed, layers=2) + common, case[-1]
    # the worst lower bound that is allowed: nothing may then be dropped too early
    upper = upper_bounds(weights, geometry, torch.zeros(2, dtype=torch.float64), dense_up_to=0)
    exact = torch.stack([torch.linalg.matrix_norm(dense(weight, geometry), 2) for weight in weights])
    assert (upper >= exact * (1 - 1e-12)).all()
    lower, _ = operator_norms(weights, geometry)
    assert (upper_bounds(weights, geometry, lower, dense_up_to=0) >= exact * (1 - 1e-12)).all()
    torch.testing.assert_close(upper_bounds(weights, geometry, lower, dense_up_to=10**6), exact)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_upper_bound_is_tight_on_an_ordinary_layer(stride):
    geometry = Geometry((16, 16), (stride, stride), (1, 1))
    weights = weights_of(8, 8, (3, 3), geometry)
    norms, _ = operator_norms(weights, geometry, tolerance=1e-8, iterations=5000)
    upper = upper_bounds(weights, geometry, torch.zeros_like(norms), dense_up_to=0)
    assert (norms < upper).all()
    assert (upper < 1.05 * norms).all()


def test_the_reshaped_norm_is_another_number():
    geometry = Geometry((16, 16), padding=(1, 1))
    blur = torch.ones(1, 1, 1, 3, 3, dtype=torch.float64) / 9
    norms, _ = operator_norms(blur, geometry, tolerance=1e-9)
    assert norms.item() == pytest.approx(1, abs=0.05)  # a constant image passes, but for the border
    assert reshaped_norms(blur).item() == pytest.approx(1 / 3)


def test_the_size_of_the_image_matters():
    small, large = (
        operator_norms(torch.ones(1, 1, 1, 3, 3), Geometry((size, size), padding=(1, 1)))[0] for size in (2, 32)
    )
    assert small.item() == pytest.approx(4, rel=1e-4)  # on 2x2 pixels, every tap sees all four
    assert large.item() > 8.9


def test_a_warm_start_goes_on_where_it_stopped():
    geometry = Geometry((8, 8), padding=(1, 1))
    weights = weights_of(6, 6, (3, 3), geometry)
    exact = torch.stack([torch.linalg.matrix_norm(dense(weight, geometry), 2) for weight in weights])
    once, vectors = operator_norms(weights, geometry, iterations=20, tolerance=None)
    warm, _ = operator_norms(weights, geometry, vectors, iterations=20, tolerance=None)
    cold, _ = operator_norms(weights, geometry, iterations=40, tolerance=None)
    assert (warm > once).all()
    assert (warm <= exact).all()
    torch.testing.assert_close(warm, cold)


def test_a_layer_of_zeros_has_norm_zero():
    geometry = Geometry((5, 5), padding=(1, 1))
    weights = torch.zeros(2, 3, 3, 3, 3)
    weights[1, 0, 0, 1, 1] = 2.0
    norms, _ = operator_norms(weights, geometry)
    assert norms.tolist() == [0.0, pytest.approx(2.0)]
    assert upper_bounds(weights, geometry, norms).tolist() == [0.0, pytest.approx(2.0)]


@pytest.mark.parametrize("power", [100, -100])  # squares of such weights are beyond a float32
def test_layers_of_any_size_have_a_norm(power):
    """A power of two changes no digit of any figure of the first layer, and none at all of its neighbour."""
    layers = [Operator(Geometry((8, 8), padding=(1, 1)), name) for name in ("first", "second")]
    first, second = weights_of(6, 4, (3, 3), layers[0].geometry, layers=2).float()
    usual = {"first.weight": first, "second.weight": second}
    odd = {"first.weight": first * 2.0**power, "second.weight": second}
    expected, found = ([astuple(norm) for norm in layer_norms(layers, p).values()] for p in (usual, odd))
    assert [tuple(figure / 2.0**power for figure in found[0]), found[1]] == expected
    assert 0 < expected[0][0] <= expected[0][1]
    expected, found = ([*warm_estimates(layers, p, [], 1, first=5).values()] for p in (usual, odd))
    assert [found[0] / 2.0**power, found[1]] == expected


def test_nothing_cancels_around_the_edge():
    """On two pixels, a circular difference sees its one neighbour twice, with opposite signs; a padded one does not."""
    difference = torch.tensor([[0.0, 0, 0], [1, 0, -1], [0, 0, 0]], dtype=torch.float64).reshape(1, 1, 1, 3, 3)
    geometry = Geometry((2, 2), padding=(1, 1))
    upper = upper_bounds(difference, geometry, torch.zeros(1, dtype=torch.float64), dense_up_to=0)
    assert torch.linalg.matrix_norm(dense(difference[0], geometry), 2).item() == pytest.approx(1)
    assert upper.item() >= 1
