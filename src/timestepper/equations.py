"""Every equation of the paper as a pure function, in paper order.

The paper: Yang, Wu, Li, Li, Shen and Lin, "Dynamical System Inspired Adaptive Time Stepping Controller for Residual
Network Families", AAAI 2020. Each docstring opens with the number of its equation or table. Functions take floats or
tensors, keep no state and know no module.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

# -- Section 2: a residual network as a dynamical system ---------------------------------------------------------------


def residual_step(y, branch: Callable, h=1.0):
    """Eq. 1. One residual block, which is one forward Euler step of size h of Eq. 2, y' = F(y)."""
    return y + h * branch(y)


def euler_growth(h, eigenvalue, steps: int):
    """Eq. 3. Factor by which forward Euler grows a perturbation of y' = eigenvalue * y in a number of steps."""
    return abs(1 + h * eigenvalue) ** steps


def euler_radius(h, eigenvalues: Tensor) -> Tensor:
    """Eq. 4. max |1 + h lambda_i| over the Jacobian's eigenvalues; forward Euler is stable where this is at most 1."""
    return (1 + h * eigenvalues).abs().max()


def local_error(y, y_higher):
    """Eq. 5. The error of one step, read off the solution of the next higher order."""
    return abs(y - y_higher)


def rkf_step_size(step, error, tolerance: float, factor: float = 0.9, order: int = 4):
    """Eq. 6. The next step size of the Runge-Kutta-Fehlberg method, from the error of the current one."""
    return factor * step * (tolerance / error) ** (1 / (order + 1))


def log_perturbation_bound(norms: Tensor, steps: Tensor) -> Tensor:
    """Eq. 7 (Proposition 1). Logarithm of prod_j (1 + ||W_j|| dt_j), which bounds the growth of a perturbation.

    In logarithms, because the product overflows for deep networks.
    """
    return torch.log1p(norms * steps).sum()


def backpropagated(gradient: Tensor, residual_sum_vjp: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Eq. 8. The two parts of dL/dy_n: the identity's, which is dL/dy_D, and that of the sum of all later branches."""
    return gradient, residual_sum_vjp(gradient)


# -- Section 3: the controller -----------------------------------------------------------------------------------------


def evolution_time(step_sizes: Tensor) -> Tensor:
    """Eq. 9. T = sum of step sizes over depth; step sizes are (depth, channels), so T is one number per channel."""
    return step_sizes.sum(0)


def descriptor(weight: Tensor) -> Tensor:
    """Section 3.2. Average a convolution's weight (outputs, inputs, k1, k2) over its inputs, then flatten.

    A linear layer's weight (outputs, inputs) is a convolution with one tap.
    """
    return weight.mean(1).flatten()


def visible_descriptor(described: Tensor) -> Tensor:
    """Not in the paper. The descriptors of a stage, (L, D), in a form that a controller can see: (L, D + 1).

    Averaged weights are small numbers around zero, and weight decay makes the controller ignore them. Here they are
    divided by their root mean square over the stage, and the logarithm of each site's own is appended.
    """
    # Clamped before the root, whose slope at zero is infinite: the gradient of a site of zeros would be NaN.
    scale = described.square().mean(1, keepdim=True).clamp_min(1e-24).sqrt()
    whole = described.square().mean().clamp_min(1e-24).sqrt()
    return torch.cat([described / whole, scale.log()], 1)


def input_transform(described: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Eq. 10. x = relu(W_in w + b_in), for all depths at once: (L, D) to (L, C/r)."""
    return torch.relu(_affine(described, weight, bias))


def lstm_cell(x_gates: Tensor, h: Tensor, c: Tensor, weight_h: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 11. One step of the LSTM; the gates are stacked in the order i, f, g, o.

    The paper multiplies W by [h, x]. Its x half and the bias do not wait for h, so they come in ready as ``x_gates``.
    """
    i, f, g, o = (x_gates + weight_h @ h).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def lstm(x: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> Tensor:
    """Eq. 11 over the depth of a stage, from h = c = 0: (L, H) to (L, H)."""
    x_gates = _affine(x, weight_x, bias)
    h = c = x.new_zeros(x.shape[1])
    hidden = []
    for gates in x_gates.unbind():
        h, c = lstm_cell(gates, h, c, weight_h)
        hidden.append(h)
    return torch.stack(hidden)


def output_transform(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Eq. 12. dt = sigmoid(W_out h + b_out), in (0, 1): (L, C/r) to (L, C)."""
    return torch.sigmoid(_affine(hidden, weight, bias))


def _affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """W x + b as one operation, for one matrix or a batch of them (one per site).

    Not ``x @ W.mT + b``: for a stage of one site, inductor (torch 2.11 to 2.15) writes the sum over the product and
    then reads it in the backward pass, which gives silently wrong gradients.
    """
    return torch.baddbmm(bias, x, weight.transpose(1, 2)) if weight.dim() == 3 else functional.linear(x, weight, bias)


def stepped_forward(shortcut: Tensor, branch: Tensor, step_size: Tensor) -> Tensor:
    """Eq. 13. y + F(y) * dt, one step size per channel of (N, C, ...) features.

    Written for readers and tests: the library moves the product into the branch's parameters (reparam.py).
    """
    return shortcut + branch * step_size.reshape(1, -1, *[1] * (branch.dim() - 2))


# -- Table 1: parameters that each method adds, biases not counted -----------------------------------------------------


def independent_complexity(layers: Sequence[int], channels: Sequence[int]) -> int:
    """Table 1, TSC_indp. Sum over stages of L C; also what every method keeps for inference."""
    return sum(length * c for length, c in zip(layers, channels, strict=True))


def two_fc_complexity(
    layers: Sequence[int], channels: Sequence[int], descriptor_per_channel: float, reduction: int
) -> float:
    """Table 1, TSC_2fc. Sum over stages of L C^2 / r (1 + k1 k2); k1 k2 stands for descriptor length over channels."""
    return sum(
        length * c * c / reduction * (1 + descriptor_per_channel) for length, c in zip(layers, channels, strict=True)
    )


def lstm_complexity(channels: Sequence[int], descriptor_per_channel: float, reduction: int) -> float:
    """Table 1, TSC_LSTM. Sum over stages of C^2 / r (1 + 8 / r + k1 k2), whatever the depth."""
    return sum(c * c / reduction * (1 + 8 / reduction + descriptor_per_channel) for c in channels)
