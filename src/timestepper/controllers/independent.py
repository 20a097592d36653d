"""TSC_indp: the step sizes are parameters of their own."""

import torch
from torch import Tensor, nn

from timestepper.controllers.base import Controller, StageShape


class Independent(Controller):
    """One free parameter per site and channel; the sigmoid keeps the step size in (0, 1), 0.5 at the start."""

    reads_weights = False

    def __init__(self, shape: StageShape):
        super().__init__(shape)
        self.logit = nn.Parameter(torch.zeros(shape.sites, shape.channels))

    def forward(self, descriptors: Tensor) -> Tensor:
        (logit,) = self.precise()
        return torch.sigmoid(logit)
