"""What the kernels compute, in plain PyTorch and on the flat buffers, in any precision and on any device.

The operators run this where there is no CUDA device, the tests check it by finite differences in float64, and the
kernels are checked against it.
"""

import torch
from torch import Tensor

from timestepper import equations
from timestepper.kernels.layout import Layout


def describe(weights: list[Tensor]) -> Tensor:
    """The descriptors of all convolutions, one after the other."""
    return torch.cat([equations.descriptor(weight) for weight in weights])


def forward(described: Tensor, parameters: list[Tensor], layout: Layout) -> tuple[Tensor, Tensor]:
    """Step sizes of all stages, and the state that backward needs."""
    steps, states = [], []
    for stage, (length, width, _, hidden) in enumerate(layout.shapes):
        w_in, b_in, w_x, w_h, b, w_out, b_out = parameters[7 * stage : 7 * stage + 7]
        rows = described[layout.described[stage] : layout.described[stage + 1]].view(length, width)
        x = equations.input_transform(rows, w_in, b_in)
        h = c = x.new_zeros(hidden)
        gates, cells, hiddens = [], [], []
        for x_gates in (x @ w_x.mT + b).unbind():
            h_before, c_before = h, c
            i, f, g, o = (x_gates + w_h @ h_before).chunk(4)
            gates.append(torch.cat([torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)]))
            h, c = equations.lstm_cell(x_gates, h_before, c_before, w_h)
            cells.append(c)
            hiddens.append(h)
        all_hidden = torch.stack(hiddens)
        steps.append(equations.output_transform(all_hidden, w_out, b_out).flatten())
        states += [x.flatten(), torch.cat(gates), torch.cat(cells), all_hidden.flatten()]
    return torch.cat(steps), torch.cat(states)


def backward(
    gradient: Tensor, steps: Tensor, described: Tensor, state: Tensor, parameters: list[Tensor], layout: Layout
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, flat in their order, and of the descriptors; ``gradient`` is that of the steps.

    By autograd, from the beginning: what forward left is for the kernels.
    """
    inputs = [tensor.detach().requires_grad_() for tensor in (described, *parameters)]
    with torch.enable_grad():
        again, _ = forward(inputs[0], inputs[1:], layout)
    of_described, *found = torch.autograd.grad(again, inputs, gradient)
    return torch.cat([each.flatten() for each in found]), of_described


def scale(parameters: list[Tensor], steps: Tensor, places: list[int]) -> Tensor:
    """Each parameter times its step sizes, one after the other."""
    return torch.cat([p * steps[place : place + p.numel()] for p, place in zip(parameters, places, strict=True)])


def scale_backward(
    gradient: Tensor, parameters: list[Tensor], steps: Tensor, places: list[int]
) -> tuple[Tensor, Tensor]:
    """Gradients of the parameters, one after the other, and of the step sizes."""
    parts = gradient.split([parameter.numel() for parameter in parameters])
    step_gradient = torch.zeros_like(steps)
    for part, parameter, place in zip(parts, parameters, places, strict=True):
        step_gradient[place : place + parameter.numel()] += part * parameter
    return scale([*parts], steps, places), step_gradient
