"""The LSTM controller's forward and its backward written out by hand, in plain PyTorch and on the flat buffers.

What the kernels compute, line by line, in any precision and on any device: the operators run this where there is no
CUDA device, the tests check it by finite differences in float64, and the kernels are checked against it.
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
        x = equations.input_transform(_part(described, layout.described, stage, length, width), w_in, b_in)
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
    """Gradients of the parameters, flat in their order, and of the descriptors; ``gradient`` is that of the steps."""
    found: list[Tensor] = []
    described_gradients = []
    for stage, (length, width, channels, hidden) in enumerate(layout.shapes):
        w_in, _, w_x, w_h, _, w_out, _ = parameters[7 * stage : 7 * stage + 7]
        d = _part(described, layout.described, stage, length, width)
        dt = _part(steps, layout.steps, stage, length, channels)
        x, gates, cells, hiddens = (
            part.view(length, -1)
            for part in state[layout.state[stage] : layout.state[stage + 1]].split(
                [length * hidden, 4 * length * hidden, length * hidden, length * hidden]
            )
        )
        # Eq. 12: the sigmoid's derivative is dt (1 - dt).
        dz_out = _part(gradient, layout.steps, stage, length, channels) * dt * (1 - dt)
        dz = lstm_backward(dz_out @ w_out, gates, cells, w_h)
        dx = (dz @ w_x) * (x > 0)
        h_before = torch.cat([hiddens.new_zeros(1, hidden), hiddens[:-1]])
        found += [dx.mT @ d, dx.sum(0), dz.mT @ x, dz.mT @ h_before, dz.sum(0), dz_out.mT @ hiddens, dz_out.sum(0)]
        described_gradients.append(dx @ w_in)
    return torch.cat([g.flatten() for g in found]), torch.cat([g.flatten() for g in described_gradients])


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


def lstm_backward(dh_out: Tensor, gates: Tensor, cells: Tensor, w_h: Tensor) -> Tensor:
    """Gradient of the gates before their activations, (L, 4H), from that of the hidden states, (L, H)."""
    dz = torch.zeros_like(gates)
    dh_next = dc_next = torch.zeros_like(cells[0])
    for site in reversed(range(len(cells))):
        i, f, g, o = gates[site].chunk(4)
        tanh_c = torch.tanh(cells[site])
        c_before = cells[site - 1] if site else torch.zeros_like(tanh_c)
        dh = dh_out[site] + dh_next
        dc = dc_next + dh * o * (1 - tanh_c**2)
        dz[site] = torch.cat(
            [dc * g * i * (1 - i), dc * c_before * f * (1 - f), dc * i * (1 - g**2), dh * tanh_c * o * (1 - o)]
        )
        dh_next, dc_next = dz[site] @ w_h, dc * f
    return dz


def _part(flat: Tensor, offsets: list[int], stage: int, *shape: int) -> Tensor:
    return flat[offsets[stage] : offsets[stage + 1]].view(shape)
