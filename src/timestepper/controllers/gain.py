"""Step sizes by how much a block may change the stream, relative to the size of the stream; the paper has none such."""

from functools import reduce

import torch
from torch import Tensor, nn

from timestepper.controllers.base import Controller, StageShape, at_least_float32, he_normal

HIDDEN = 8
SMALLEST = 1e-2  # of a gain: a branch that starts at 0 has none to divide by


class Gain(Controller):
    """The relative update rho of every block, from the stream's size v, the branch's gain g and its place in the stage.

    v is 1 at the first block of a stage and grows with what is added. A branch with a norm gives an output of size g
    whatever it reads, so dt = rho * v / g; without norms it gives g * v, so dt = rho / g. Either way v grows by the
    factor sqrt(1 + rho^2). The output layer starts at 0, so rho starts at 1 / sqrt(L) for the L blocks of the whole
    network, and the stream's variance grows by a factor of about e, however deep it is, where v and g are what they are
    taken for: in networks without norms. In transformers they are not (docs/tutorials/controller.md). Nothing caps a
    step size.
    """

    reads_gain = True
    own_start = True
    decays = False

    def __init__(self, shape: StageShape):
        super().__init__(shape)
        self.input_weight = he_normal(HIDDEN, 3)
        self.input_bias = nn.Parameter(torch.zeros(HIDDEN))
        self.output_weight = nn.Parameter(torch.zeros(shape.channels, HIDDEN))
        self.output_bias = nn.Parameter(torch.zeros(shape.channels))

    def forward(self, descriptors: Tensor) -> Tensor:
        w_in, b_in, w_out, b_out = self.precise()
        log_v, rows = descriptors.new_zeros(()), []
        first = (self.shape.network_sites or self.shape.sites) ** -0.5
        for site, log_g in enumerate(descriptors[:, 0].unbind()):
            seen = torch.stack([log_v, log_g, torch.full_like(log_v, site / self.shape.sites)])
            log_rho = w_out @ torch.tanh(w_in @ seen + b_in) + b_out
            rho = torch.exp(log_rho) * first
            rows.append(rho * torch.exp(log_v * float(self.shape.normed) - log_g))
            log_v = log_v + 0.5 * torch.log1p(rho.square().mean())
        return torch.stack(rows)

    def multiply_adds(self) -> int:
        return self.shape.sites * (self.input_weight.numel() + self.output_weight.numel())


def log_gain(weights: list[Tensor], scale: Tensor | None, norm: bool) -> Tensor:
    """How large the output of a branch is for an input of size 1, (1,).

    ``scale`` is the weight per channel that it ends in, where it does. Behind a norm that is all; otherwise it is what
    its matrices do to the mean square of inputs that have nothing to do with each other, with a ReLU in front of each.
    """
    parts = [] if scale is None else [at_least_float32(scale).square().mean()]
    if not norm:
        precise = map(at_least_float32, weights)
        parts += [0.5 * weight.square().sum() / weight.shape[0] for weight in precise]
    product = reduce(torch.mul, parts)  # torch.prod's gradient looks for zeros, and a GPU has to be waited for
    return 0.5 * product.clamp_min(SMALLEST**2).log().reshape(1)
