"""Residual networks that learn their own time steps.

    net = timestepper.attach(net)       # in place: your network, your loop, one line
    plain = timestepper.fold(net)       # a plain copy with the step sizes in its weights

- Attach and take off: attach, detach, fold, frozen_steps.
- Look inside: discover, step_sizes, evolution_time, summary, descriptor_influence, is_attached.
- Train parts: parameter_groups, controller_parameters, freeze_base.
- Save and load: save_controllers, load_controllers, save_folded, load_folded, from_pretrained.
- Your own blocks and controllers: adapters, controllers.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timestepper import adapters, controllers
    from timestepper.api import (
        attach,
        detach,
        discover,
        evolution_time,
        fold,
        frozen_steps,
        is_attached,
        step_sizes,
    )
    from timestepper.inspection import descriptor_influence, summary
    from timestepper.integrations.pretrained import from_pretrained
    from timestepper.saving import load_controllers, load_folded, save_controllers, save_folded
    from timestepper.training import controller_parameters, freeze_base, parameter_groups

__version__ = "0.1.0"

__all__ = [
    "adapters",
    "attach",
    "controller_parameters",
    "controllers",
    "descriptor_influence",
    "detach",
    "discover",
    "evolution_time",
    "fold",
    "freeze_base",
    "from_pretrained",
    "frozen_steps",
    "is_attached",
    "load_controllers",
    "load_folded",
    "parameter_groups",
    "save_controllers",
    "save_folded",
    "step_sizes",
    "summary",
]


_HOMES = ("api", "training", "inspection", "saving", "integrations.pretrained")


def __getattr__(name: str):
    """Public names are loaded on first use, so that the command line answers without importing torch."""
    if name not in __all__:
        raise AttributeError(f"module 'timestepper' has no attribute {name!r}")
    if name in ("adapters", "controllers"):
        return importlib.import_module(f"timestepper.{name}")
    homes = (importlib.import_module(f"timestepper.{home}") for home in _HOMES)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


def __dir__() -> list[str]:
    return __all__
