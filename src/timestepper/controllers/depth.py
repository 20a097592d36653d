"""A constant step size that falls with the depth of the stage: L to the power of minus alpha for L sites."""

import math

from timestepper.controllers.base import StageShape, fits_float32
from timestepper.controllers.fixed import Fixed
from timestepper.errors import StepSizeError


class Depth(Fixed):
    """Nothing to learn. alpha = 1 makes the evolution time of every stage 1, whatever its depth."""

    def __init__(self, shape: StageShape, alpha: float):
        if not math.isfinite(alpha):
            raise StepSizeError(f"alpha must be a number, not {alpha}; try depth(0.5)")
        try:
            value = shape.sites**-alpha
        except OverflowError:
            value = math.inf
        if not (fits_float32(value) and value > 0):
            raise StepSizeError(
                f"depth({alpha}) makes the step size of {shape.sites} sites {value}, which no network can run with; "
                "try depth(0.5)"
            )
        super().__init__(shape, value)
