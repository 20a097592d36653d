"""Residual networks that learn their own time steps."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timestepper import adapters, controllers
    from timestepper.api import attach, detach, evolution_time, fold, step_sizes
    from timestepper.inspection import descriptor_influence, summary
    from timestepper.saving import load_controllers, load_folded, save_controllers, save_folded

__version__ = "0.1.0"

__all__ = [
    "adapters",
    "attach",
    "controllers",
    "descriptor_influence",
    "detach",
    "evolution_time",
    "fold",
    "load_controllers",
    "load_folded",
    "save_controllers",
    "save_folded",
    "step_sizes",
    "summary",
]


def __getattr__(name: str):
    """Public names are loaded on first use, so that the command line answers without importing torch."""
    if name not in __all__:
        raise AttributeError(f"module 'timestepper' has no attribute {name!r}")
    if name in ("adapters", "controllers"):
        return importlib.import_module(f"timestepper.{name}")
    homes = map(importlib.import_module, ("timestepper.api", "timestepper.inspection", "timestepper.saving"))
    return next(getattr(home, name) for home in homes if hasattr(home, name))
