"""The kinds of controller and how a user names them.

``"lstm"`` and ``"fixed(0.01)"`` are names; `KINDS` has all of them. One of your own is a class and a line:

    @timestepper.controllers.register("gru")
    class GRU(timestepper.controllers.Controller): ...

    timestepper.attach(net, "gru")      # or attach(net, GRU), without a name
"""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from timestepper import names
from timestepper.controllers.base import Controller, StageShape
from timestepper.controllers.depth import Depth
from timestepper.controllers.fixed import Fixed
from timestepper.controllers.gain import Gain
from timestepper.controllers.independent import Independent
from timestepper.controllers.lstm import LSTM
from timestepper.controllers.scalar import Channel, Scalar
from timestepper.controllers.two_fc import TwoFC
from timestepper.errors import (
    CheckpointError,
    Leave,
    StepSizeError,
    TimestepperError,
    UnknownNameError,
    first_line,
    in_words,
)

KINDS: dict[str, type[Controller]] = {
    "lstm": LSTM,
    "two_fc": TwoFC,
    "independent": Independent,
    "fixed": Fixed,
    "scalar": Scalar,
    "channel": Channel,
    "depth": Depth,
    "gain": Gain,
}
"""The class of every kind by its name; `register` adds to it."""
_UNNAMED: dict[str, type[Controller]] = {}  # classes that were attached without a name, by ``module:Class``


def register(name: str) -> Callable[[type[Controller]], type[Controller]]:
    """Give a controller of your own a name, which ``attach``, recipes, records and the page then know.

    What its constructor takes beside the shape of a stage are its options, numbers: ``attach(net, "gru(2)")``.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in ("none", "plain"):
        raise UnknownNameError(f"{name!r} cannot be the name of a controller; use small letters, digits and _")

    def remember(kind: type[Controller]) -> type[Controller]:
        known = KINDS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
            raise UnknownNameError(
                f"a controller called {name!r} exists already, {known.__qualname__}; use another name"
            )
        _check(kind)
        options = _options_of(kind)
        shown = (str(each.default) if isinstance(each.default, int | float) else key for key, each in options.items())
        example = f"{name}({', '.join(shown)})" if options else ""
        optional = all(each.default is not each.empty for each in options.values())
        names.CONTROLLERS[name] = names.Kind(tuple(options), kind.reads_weights, example, optional=optional)
        KINDS[name] = kind
        return kind

    return remember


def _check(kind: object) -> None:
    if not (inspect.isclass(kind) and issubclass(kind, Controller)) or inspect.isabstract(kind):
        raise UnknownNameError(f"{kind!r} is no controller; derive it from timestepper.controllers.Controller")
    if not inspect.signature(kind).parameters:
        raise UnknownNameError(
            f"the constructor of {kind.__qualname__} takes no shape of a stage; write def __init__(self, shape), which "
            "calls super().__init__(shape)"
        )
    for option in inspect.signature(kind).parameters.values():
        if option.kind is option.KEYWORD_ONLY and option.default is option.empty:
            raise UnknownNameError(
                f"the constructor of {kind.__qualname__} wants {option.name} by its name, and options of controllers "
                f"are numbers in their order; write it before the *, or give {option.name} a default"
            )


def _options_of(kind: type[Controller]) -> dict[str, inspect.Parameter]:
    """What can be written behind its name: arguments that have a place, after the shape."""
    found = list(inspect.signature(kind).parameters.items())[1:]
    return {name: each for name, each in found if each.kind is each.POSITIONAL_OR_KEYWORD}


@dataclass(frozen=True)
class ControllerSpec:
    """A kind and its options; every stage's controller is built from one."""

    kind: str
    options: Mapping[str, float] = field(default_factory=dict)

    @property
    def controller(self) -> type[Controller]:
        return KINDS.get(self.kind) or _UNNAMED[self.kind]

    def build(self, shape: StageShape) -> Controller:
        try:
            return self.controller(shape, **self.options)
        except TimestepperError:
            raise
        except Exception as error:  # of a user's class, which can raise anything
            raise StepSizeError(
                f"controller {self} cannot be built for {shape.sites} sites of {shape.channels} channels: "
                f"{in_words(error)}; use other options, or mend the constructor of {self.controller.__qualname__}"
            ) from error

    def __str__(self) -> str:
        """As `parse` reads it back, to the last bit: saved controllers are described by it."""
        values = ", ".join(str(value).removesuffix(".0") for value in self.options.values())
        return f"{self.kind}({values})" if self.options else self.kind


def parse(name: "str | ControllerSpec | type[Controller]", file: Path | None = None) -> ControllerSpec:
    """The spec that a name such as ``lstm`` or ``fixed(0.01)`` stands for; a spec itself must have such a name.

    One that stands in a ``file`` imports no module that its user has not imported or allowed.
    """
    if not isinstance(name, str | ControllerSpec | type):
        raise UnknownNameError(f"{type(name).__name__} is no controller; inputs for discovery are given as example=")
    text = (_named(name) if inspect.isclass(name) else str(name)).strip()
    match = re.fullmatch(r"([^()]+)(?:\((.*)\))?", text)
    if match is None or not _is_known(match[1], file):
        raise UnknownNameError(f"unknown controller {text!r}; known are {names.known()}")
    options = _options(match[1], match[2] or "")
    # A spec is saved as its name, which has its options in the order of the kind's own.
    if options is None or (isinstance(name, ControllerSpec) and list(name.options) != list(options)):
        wanted = _options_of(ControllerSpec(match[1]).controller)
        form = f"{match[1]}({', '.join(wanted)}) with numbers" if wanted else f"{match[1]}, without options"
        raise StepSizeError(f"controller {text!r} has too few or too many options; write it as {form}")
    return name if isinstance(name, ControllerSpec) else ControllerSpec(match[1], options)


def _named(kind: type[Controller]) -> str:
    """A class that nobody has registered goes by where it is, so that it can be found again."""
    _check(kind)
    registered = next((name for name, known in KINDS.items() if known is kind), None)
    if registered is not None:
        return registered
    name = f"{kind.__module__}:{kind.__qualname__}"
    _UNNAMED[name] = kind
    return name


def _is_known(kind: str, file: Path | None) -> bool:
    """Whether it is registered, or a class ``module:Class`` that can be imported."""
    module, colon, path = kind.partition(":")
    known = kind in KINDS or kind in _UNNAMED
    if known or not colon:
        return known
    if file is not None and not names.may_import(module):
        raise CheckpointError(
            f"{file}: needs the Python module {module!r}, and code is not run because a file asks for it; import "
            f"{module} first"
        )
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (KeyboardInterrupt, Leave):
        raise
    except BaseException as error:  # of a foreign module, which can raise anything
        raise UnknownNameError(f"unknown controller {kind!r}: {type(error).__name__}: {first_line(error)}") from error
    _check(found)
    _UNNAMED[kind] = found  # type: ignore[assignment]
    return True


def _options(kind: str, text: str) -> dict[str, float] | None:
    """``0.5, 2`` by the names of the kind's options; None where they do not fit."""
    try:
        values = [_number(part) for part in text.split(",") if part.strip()]
        shape = None  # in its place, to bind the others
        found = inspect.signature(ControllerSpec(kind).controller).bind(shape, *values)
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
    "parse",
    "register",
]
