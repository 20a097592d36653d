"""Residual networks that learn their own time steps."""

from timestepper import adapters, controllers
from timestepper.api import attach, detach, evolution_time, fold, step_sizes

__all__ = ["adapters", "attach", "controllers", "detach", "evolution_time", "fold", "step_sizes"]
__version__ = "0.1.0"
