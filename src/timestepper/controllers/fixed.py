"""One constant step size for the whole network: the paper's 1 and 0.01 of Figure 4."""

import torch
from torch import Tensor

from timestepper.controllers.base import Controller, StageShape, fits_float32
from timestepper.errors import StepSizeError


class Fixed(Controller):
    """Nothing to learn. The value may exceed 1."""

    reads_weights = False
    own_start = True

    def __init__(self, shape: StageShape, value: float):
        if not (fits_float32(value) and value > 0):
            raise StepSizeError(f"a fixed step size must be a positive number of float32, not {value}; try fixed(0.01)")
        super().__init__(shape)
        self.value = value

    def forward(self, descriptors: Tensor) -> Tensor:
        dtype = torch.promote_types(descriptors.dtype, torch.float32)
        return torch.full((self.shape.sites, self.shape.channels), self.value, dtype=dtype, device=descriptors.device)
