"""TSC_2fc: two fully connected layers per site, nothing shared, no memory of earlier steps."""

import torch
from torch import Tensor, nn

from timestepper import equations
from timestepper.controllers.base import Controller, StageShape, he_normal


class TwoFC(Controller):
    """The input and output transformations of the paper without the LSTM between them, one pair per site."""

    def __init__(self, shape: StageShape):
        super().__init__(shape)
        sites, hidden = shape.sites, shape.hidden
        self.input_weight = he_normal(sites, hidden, shape.descriptor, gain=2**0.5)
        self.input_bias = nn.Parameter(torch.zeros(sites, 1, hidden))
        self.output_weight = he_normal(sites, shape.channels, hidden)
        self.output_bias = nn.Parameter(torch.zeros(sites, 1, shape.channels))

    def forward(self, descriptors: Tensor) -> Tensor:
        w_in, b_in, w_out, b_out = self.precise()
        hidden = equations.input_transform(descriptors.unsqueeze(1), w_in, b_in)
        return equations.output_transform(hidden, w_out, b_out).squeeze(1)

    def multiply_adds(self) -> int:
        return self.input_weight.numel() + self.output_weight.numel()
