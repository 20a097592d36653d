"""One learned number per block: ReZero and SkipInit begin it at 0. The paper finds one per channel better."""

import torch
from torch import Tensor, nn

from timestepper.controllers.base import Controller, StageShape, fits_float32
from timestepper.errors import StepSizeError


class Scalar(Controller):
    """Free to leave (0, 1), and to begin at 0."""

    reads_weights = False
    own_start = True

    def __init__(self, shape: StageShape, value: float):
        if not fits_float32(value):
            kind = type(self).__name__.lower()
            raise StepSizeError(
                f"the first step size of {kind} must be a number of float32, not {value}; try {kind}(0.1)"
            )
        super().__init__(shape)
        self.step_size = nn.Parameter(torch.full(self._size(), float(value)))

    def _size(self) -> tuple[int, ...]:
        return (self.shape.sites, 1)

    def forward(self, descriptors: Tensor) -> Tensor:
        (step_size,) = self.precise()
        return step_size.expand(self.shape.sites, self.shape.channels)


class Channel(Scalar):
    """One learned number per block and channel: LayerScale."""

    def _size(self) -> tuple[int, ...]:
        return (self.shape.sites, self.shape.channels)
