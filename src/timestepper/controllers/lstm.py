"""The paper's controller, TSC_LSTM: an LSTM over the depth of a stage."""

import torch
from torch import Tensor, nn

from timestepper import equations
from timestepper.controllers.base import Controller, StageShape, he_normal


class LSTM(Controller):
    """Shared by all sites of its stage. One bias per gate, zero at the start, so every first step size is near 0.5.

    Own parameters and plain operations, because ``nn.LSTM`` breaks the graph of ``torch.compile``.
    """

    def __init__(self, shape: StageShape):
        super().__init__(shape)
        hidden = shape.hidden
        self.input_weight = he_normal(hidden, shape.descriptor, gain=2**0.5)
        self.input_bias = nn.Parameter(torch.zeros(hidden))
        self.gate_weight_x = he_normal(4 * hidden, hidden)
        self.gate_weight_h = he_normal(4 * hidden, hidden)
        self.gate_bias = nn.Parameter(torch.zeros(4 * hidden))
        self.output_weight = he_normal(shape.channels, hidden)
        self.output_bias = nn.Parameter(torch.zeros(shape.channels))

    def forward(self, descriptors: Tensor) -> Tensor:
        w_in, b_in, w_x, w_h, b, w_out, b_out = self.precise()
        x = equations.input_transform(descriptors, w_in, b_in)
        hidden = equations.lstm(x, w_x, w_h, b)
        return equations.output_transform(hidden, w_out, b_out)

    def multiply_adds(self) -> int:
        matrices = (self.input_weight, self.gate_weight_x, self.gate_weight_h, self.output_weight)
        return self.shape.sites * sum(matrix.numel() for matrix in matrices)
