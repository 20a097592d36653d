"""The kinds of controller by name, without torch: what recipes, claims, records and the page know of them.

``timestepper.controllers`` has the classes. A kind of a user's own joins this table when it is registered.
"""

import os
import re
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What can be said of a kind without building it."""

    options: tuple[str, ...] = ()  # numbers, in the order in which they are written: ``fixed(0.01)``
    reads_weights: bool = True
    example: str = ""  # how it is written, where it has options
    optional: bool = False  # whether it can be written without its options
    paper: bool = False  # whether Table 1 of the paper has a formula for it


CONTROLLERS: dict[str, Kind] = {
    "lstm": Kind(paper=True),
    "two_fc": Kind(paper=True),
    "independent": Kind(reads_weights=False, paper=True),
    "fixed": Kind(("value",), reads_weights=False, example="fixed(0.01)"),
    "scalar": Kind(("value",), reads_weights=False, example="scalar(0)"),
    "channel": Kind(("value",), reads_weights=False, example="channel(0.1)"),
    "depth": Kind(("alpha",), reads_weights=False, example="depth(0.5)"),
    "gain": Kind(),
}
STARTS = ("paper", "identity")  # or a number
MODULES = "TIMESTEPPER_MODULES"  # those that a user lets files ask for, with commas between


def known() -> str:
    """All kinds as a user writes them."""
    return ", ".join(kind.example or name for name, kind in CONTROLLERS.items())


def kind_of(controller: str) -> str:
    """``fixed`` of ``fixed(0.01)``."""
    return re.split(r"[(,]", controller)[0].strip()


def may_import(module: str) -> bool:
    """Whether a module that only a file asks for may be used: it is imported already, or the user has named it."""
    return module in sys.modules or module in allowed()


def allowed() -> list[str]:
    """The modules that the user has named."""
    return [module for each in os.environ.get(MODULES, "").split(",") if (module := each.strip())]
