"""The reference, the operators around it and the kernels under Triton's interpreter."""

import kernel_errors
import pytest
import torch
from interpreter import run_interpreted

from timestepper import equations
from timestepper.errors import StepSizeError
from timestepper.kernels import eager, ops, reference, tables
from timestepper.kernels.layout import MATRICES, TILE, layout, scale_rows
from timestepper.kernels.tables import known

SHAPES = ((3, 12, 6, 2), (4, 10, 5, 3), (1, 7, 4, 1))
NUMBERS = list(kernel_errors.numbers(SHAPES))


def controllers():
    described, parameters, gradient = kernel_errors.random_controllers(SHAPES)
    return described.requires_grad_(), [parameter.requires_grad_() for parameter in parameters], gradient


def test_forward_is_that_of_the_equations():
    described, parameters, _ = controllers()
    steps, _ = ops.lstm_steps(described, parameters, NUMBERS)
    place = 0
    for stage, (length, width, _, _) in enumerate(SHAPES):
        w_in, b_in, w_x, w_h, b, w_out, b_out = parameters[7 * stage : 7 * stage + 7]
        rows = described[place : place + length * width].view(length, width)
        place += length * width
        hidden = equations.lstm(equations.input_transform(rows, w_in, b_in), w_x, w_h, b)
        expected = equations.output_transform(hidden, w_out, b_out)
        found = steps[layout(tuple(NUMBERS)).steps[stage] :][: expected.numel()].view_as(expected)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)


def test_backward_is_the_derivative():
    described, parameters, _ = controllers()

    def steps(described, *parameters):
        return ops.lstm_steps(described, list(parameters), NUMBERS)[0]

    assert torch.autograd.gradcheck(steps, (described, *parameters))


def test_descriptor_backward_is_the_derivative():
    weights = [
        torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((4, 3, 3, 3), (5, 2, 1, 1), (3, 4))
    ]
    assert torch.autograd.gradcheck(lambda *w: ops.describe(list(w)), weights)


def scaled():
    generator = torch.Generator().manual_seed(1)
    parameters = [torch.randn(n, dtype=torch.float64, generator=generator).requires_grad_() for n in (3, 3, 4)]
    return parameters, torch.rand(7, dtype=torch.float64, generator=generator).requires_grad_(), [4, 4, 0]


def test_scaled_parameters_are_products():
    (weight, bias, other), steps, places = scaled()
    expected = torch.cat([weight * steps[4:], bias * steps[4:], other * steps[:4]])
    assert torch.equal(ops.scale([weight, bias, other], steps, places), expected)


def test_scale_backward_is_the_derivative():
    parameters, steps, places = scaled()
    assert torch.autograd.gradcheck(lambda dt, *p: ops.scale(list(p), dt, places), (steps, *parameters))


def test_scale_gives_frozen_parts_no_gradient():
    parameters, steps, places = scaled()
    parameters[1].requires_grad_(False)
    ops.scale(parameters, steps.detach(), places).sum().backward()
    assert parameters[1].grad is None
    assert torch.equal(parameters[0].grad, steps.detach()[4:])


def test_scale_table_has_a_row_for_every_site_and_parameter():
    assert scale_rows([100, 200, 300], [3, 3, 4], [4, 4, 0]) == [
        (4, 3, 2, 2),
        (0, 4, 4, 1),
        (100, 0, 0, 0),
        (200, 3, 0, 0),
        (300, 6, 0, 0),
    ]


def test_operators_keep_pytorchs_contract():
    described, parameters, _ = controllers()
    torch.library.opcheck(ops.lstm_steps, (described, parameters, NUMBERS))
    torch.library.opcheck(ops.describe, ([torch.randn(4, 3, 3, 3, requires_grad=True)],))
    torch.library.opcheck(ops.scale, scaled())


def test_eager_functions_are_the_operators():
    """Values, and every gradient by finite differences."""
    described, parameters, _ = controllers()
    there = known(parameters)
    found = eager.lstm_steps(described, parameters, NUMBERS, there)[0]
    assert torch.equal(found, ops.lstm_steps(described, parameters, NUMBERS)[0])
    assert torch.autograd.gradcheck(
        lambda d, *p: eager.lstm_steps(d, [*p], NUMBERS, there)[0], (described, *parameters)
    )
    weights = [
        torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in ((4, 3, 3, 3), (5, 2), (3, 4, 5))
    ]
    assert torch.equal(eager.describe(weights, known(weights)), ops.describe(weights))
    assert torch.autograd.gradcheck(lambda *w: eager.describe([*w], known(weights)), weights)
    entered, steps, places = scaled()
    there = known(entered)
    assert torch.equal(torch.cat(eager.scale(entered, steps, places, there)), ops.scale(entered, steps, places))
    assert torch.autograd.gradcheck(lambda dt, *p: eager.scale([*p], dt, places, there), (steps, *entered))


@pytest.mark.parametrize("run", [ops.lstm_steps, lambda *given: eager.lstm_steps(*given, known(given[1]))])
def test_gradient_of_gradient_is_refused(run):
    described, parameters, _ = controllers()
    steps, _ = run(described, parameters, NUMBERS)
    with pytest.raises(StepSizeError, match=r"no gradients of gradients .*; set net\.controllers\.fused = False"):
        torch.autograd.grad(steps.sum(), parameters[0], create_graph=True)


def test_frozen_parts_get_no_gradient():
    described, parameters, gradient = controllers()
    described.requires_grad_(False)
    parameters[0].requires_grad_(False)
    steps, state = ops.lstm_steps(described, parameters, NUMBERS)
    steps.backward(gradient)
    assert described.grad is None
    assert parameters[0].grad is None
    assert all(parameter.grad is not None for parameter in parameters[1:])
    assert not state.requires_grad


def test_layout_has_no_gap_and_no_overlap():
    """Every element of every flat buffer belongs to exactly one part."""
    where = layout(tuple(NUMBERS))
    rows = where.rows(list(range(7 * len(SHAPES))))
    assert len(rows) == 4 * len(SHAPES)
    for stage, (length, d, c, h) in enumerate(SHAPES):
        inputs, gates_x, gates_h, outputs = rows[4 * stage : 4 * stage + 4]
        x, gates, cell, hidden = inputs[6], gates_x[6], gates_h[6], gates_h[5]
        assert (gates - x, cell - gates, hidden - cell) == (length * h, 4 * length * h, length * h)
        assert hidden + length * h == where.state[stage + 1]
        assert outputs[5] == hidden
        assert where.described[stage + 1] - where.described[stage] == length * d
        assert where.steps[stage + 1] - where.steps[stage] == length * c
    _, parameters, _ = controllers()
    assert where.parameter_sizes == [parameter.numel() for parameter in parameters]


def test_every_tile_of_the_gradients_belongs_to_one_matrix():
    where = layout(kernel_errors.numbers(((3, 70, 33, 64), (2, 64, 32, 8))))
    rows = where.rows(list(range(14)))
    tiles = [-(-row[3] // TILE[0]) * -(-row[4] // TILE[1]) for row in rows]
    assert [row[9] for row in rows] == [sum(tiles[:matrix]) for matrix in range(2 * MATRICES)]
    assert where.tiles[-1] == sum(tiles)


def test_a_table_is_made_once_for_what_it_stands_for():
    device, built = torch.device("cpu"), []

    def build():
        built.append(1)
        return ((1, 2), (3, 4)), ("rest",)

    tensors = [torch.randn(3), torch.randn(2, 2)]
    for _ in range(3):
        found, rest = known(tensors).table("test", build, device)
    assert (found.tolist(), rest, len(built)) == ([[1, 2], [3, 4]], ("rest",), 1)
    first = known(tensors)
    others = [torch.randn(2) for _ in range(tables._MOST)]
    for other in others:  # and not kept for ever
        known([other])
    assert known(tensors) is not first


def test_what_is_known_is_of_tensors_as_they_lie():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    first = known([weight])
    assert known([weight.detach()]) is first  # another tensor in the same place
    weight.data = weight.data.t()
    turned = known([weight])
    assert turned is not first
    weight.data = weight.data.t().view(2, 8)
    assert known([weight]) not in (first, turned)
    assert known([weight.data.view(4, 4).view(torch.int32)]) is not first


INTERPRETED = """
import torch
import kernel_errors
from timestepper.kernels import ops
assert ops.INTERPRETED
torch.use_deterministic_algorithms(True)  # fills new memory with NaN, so an element that is not written shows
device = torch.device("cpu")
# L, D, C, H: a stage of one site beside a longer one; widths at and just above what a block or the registers hold
cases = {
    "odd": kernel_errors.STAGES["odd"],
    "16": ((1, 5, 6, 16), (3, 4, 5, 2)),
    "17": ((3, 5, 6, 17), (1, 4, 3, 1)),
    "64": ((1, 5, 6, 64), (2, 4, 5, 33)),
    "65": ((3, 5, 6, 65), (1, 4, 3, 64)),
    "128": ((1, 5, 6, 128), (2, 4, 5, 3)),
    "long rows": ((2, 600, 300, 8), (3, 5, 6, 7)),
}
# One run of a kernel is like the next here, where blocks run one by one: the second looks at the table that was kept.
found = {case: kernel_errors.controller_errors(stages, device, twice=case == "16") for case, stages in cases.items()}
found["describe"] = kernel_errors.describe_errors(device, widest=256)
found["scale"] = kernel_errors.scale_errors(device)
for case, errors in found.items():
    for name, error in errors.items():
        assert error < 5e-6, (case, name, error)
parameter, steps = torch.rand(300, requires_grad=True), torch.rand(300)
ops.scale([parameter], steps, [0]).sum().backward()  # by a gradient of ones that has one number in memory
assert torch.equal(parameter.grad, steps)
"""


@pytest.mark.slow
def test_kernels_agree_with_the_reference_in_the_interpreter():
    run_interpreted(INTERPRETED)


def test_a_wrong_gate_is_an_error():
    """The measure sees a mistake in one row of one stage's gates."""
    described, parameters, gradient = controllers()
    where = layout(tuple(NUMBERS))
    steps, state = reference.forward(described, parameters, where)
    expected, _ = reference.backward(gradient, steps, described, state, parameters, where)
    wrong = expected.clone()
    wrong[where.parameters[2] :][: SHAPES[0][3]] *= 1.01
    assert max(kernel_errors.parameter_errors(wrong, expected, where).values()) > 1e-5


def test_a_nan_is_the_largest_error():
    right = torch.ones(3, dtype=torch.float64)
    assert kernel_errors.relative_error(torch.tensor([1.0, 1.0, float("nan")]), right) == float("inf")
    assert kernel_errors.relative_error(torch.tensor([1.0, 1.0, 4.0]), right) == pytest.approx(3**0.5)
