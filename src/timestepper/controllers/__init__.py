"""The kinds of controller and how a user names them.

``"lstm"``, ``"two_fc"``, ``"independent"`` and ``"fixed(0.01)"`` are names; ``controllers.fixed(0.01)`` is the same as
the last one. A new kind is a class in a file of its own and a line in ``KINDS``.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from timestepper.controllers.base import Controller, StageShape
from timestepper.controllers.fixed import Fixed
from timestepper.controllers.independent import Independent
from timestepper.controllers.lstm import LSTM
from timestepper.controllers.two_fc import TwoFC
from timestepper.errors import StepSizeError, UnknownNameError

KINDS: dict[str, type[Controller]] = {"lstm": LSTM, "two_fc": TwoFC, "independent": Independent, "fixed": Fixed}


@dataclass(frozen=True)
class ControllerSpec:
    """A kind and its options; every stage's controller is built from one."""

    kind: str
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def reads_weights(self) -> bool:
        return KINDS[self.kind].reads_weights

    def build(self, shape: StageShape) -> Controller:
        return KINDS[self.kind](shape, **self.options)

    def __str__(self) -> str:
        """As :func:`parse` reads it back, to the last bit: saved controllers are described by it."""
        values = ", ".join(str(value).removesuffix(".0") for value in self.options.values())
        return f"{self.kind}({values})" if self.options else self.kind


def lstm() -> ControllerSpec:
    """The paper's controller."""
    return ControllerSpec("lstm")


def two_fc() -> ControllerSpec:
    """Two fully connected layers per site."""
    return ControllerSpec("two_fc")


def independent() -> ControllerSpec:
    """A free parameter per site and channel."""
    return ControllerSpec("independent")


def fixed(value: float) -> ControllerSpec:
    """A constant step size."""
    try:
        return ControllerSpec("fixed", {"value": float(value)})
    except (TypeError, ValueError):
        raise StepSizeError(f"a fixed step size must be a positive number, not {value!r}; try fixed(0.01)") from None


def parse(name: "str | ControllerSpec") -> ControllerSpec:
    """The spec that a name such as ``lstm`` or ``fixed(0.01)`` stands for; a spec itself must have such a name."""
    text = str(name).strip()
    match = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text)
    if match is None or match[1] not in KINDS:
        known = ", ".join("fixed(0.01)" if kind == "fixed" else kind for kind in KINDS)
        raise UnknownNameError(f"unknown controller {text!r}; known are {known}")
    options = _options(match[1], match[2] or "")
    # A spec is saved as its name, which has its options in the order of the kind's own.
    if options is None or (isinstance(name, ControllerSpec) and list(name.options) != list(options)):
        wanted = list(inspect.signature(KINDS[match[1]]).parameters)[1:]
        form = f"{match[1]}({', '.join(wanted)})" if wanted else match[1]
        raise StepSizeError(f"controller {text!r} is incomplete or has too much; write it as {form} with numbers")
    return name if isinstance(name, ControllerSpec) else ControllerSpec(match[1], options)


def _options(kind: str, text: str) -> dict[str, float] | None:
    """Numbers between commas, by the names that the kind has for them; None where they do not fit."""
    try:
        values = [_number(part) for part in text.split(",") if part.strip()]
        found = inspect.signature(KINDS[kind]).bind(None, *values)  # None stands for the shape of a stage
    except (ValueError, TypeError):
        return None
    return dict(list(found.arguments.items())[1:])


def _number(text: str) -> float:
    """As it is written: 2 is an int, because an option may be a count."""
    try:
        return int(text)
    except ValueError:
        return float(text)


__all__ = [
    "KINDS",
    "Controller",
    "ControllerSpec",
    "StageShape",
    "fixed",
    "independent",
    "lstm",
    "parse",
    "two_fc",
]
