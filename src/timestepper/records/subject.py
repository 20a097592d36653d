"""What was put on a network, as a value: which controller, with which numbers, and what about it is unusual."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timestepper import names
from timestepper.recipe.schema import ControllerSettings

_USUAL = ControllerSettings()  # which nobody needs to be told


@dataclass(frozen=True)
class Subject:
    """The kind of controller (``plain`` for none) with its numbers, where last norms start, and unusual settings."""

    kind: str
    value: tuple[float, ...] = ()
    start: float = 1.0  # of the last norm of every branch; 1 is what the paper's networks start with
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """For people: ``fixed 0.01``, ``two fc``, ``plain, last norm starts at 0.5``."""
        name = " ".join([self.kind.replace("two_fc", "two fc"), ", ".join(f"{number:g}" for number in self.value)])
        start = [] if self.start == 1 else [f"last norm starts at {self.start:g}"]
        options = (f"{key} {json.dumps(what) if isinstance(what, bool) else what}" for key, what in self.options)
        return ", ".join([name.rstrip(), *start, *(option.replace("_", " ") for option in options)])

    @property
    def order(self) -> tuple[int, str]:
        """Its place among others: plain, the controllers as they usually are, all else by its label."""
        known = ("plain", *names.CONTROLLERS)
        usual = self == Subject(self.kind) and self.kind in known
        return known.index(self.kind) if usual else len(known), self.label

    @property
    def reads_weights(self) -> bool:
        """Whether its controller is shown the weights; one that only its user knows may be."""
        kind = names.CONTROLLERS.get(self.kind)
        return self.kind != "plain" and (kind is None or kind.reads_weights)


PLAIN = Subject("plain")
HALF_START = Subject("plain", start=0.5)  # its blocks begin at half their size, as those with a controller do


def subject_of(recipe: Mapping[str, Mapping[str, Any]], changed: str = "") -> Subject:
    """What a recipe puts on its network; a run in which something was ``changed`` is of a kind of its own."""
    model = recipe["model"]
    starts = {"last_norm_init": model.get("last_norm_init"), "network_start": model.get("start")}
    return subject(**{**recipe["controller"], **starts}, changed=changed)


def subject(
    kind: str,
    value: float | None = None,
    last_norm_init: float | None = None,
    network_start: str | None = None,
    module: str | None = None,
    changed: str = "",
    **more: Any,
) -> Subject:
    """A subject by a recipe's own names; ``kind`` may have its numbers in it, as ``fixed(0.01)`` has."""
    kind, numbers = _parts(kind)
    start = 1.0 if last_norm_init is None else last_norm_init
    ways = tuple((key, way) for key, way in (("network_start", network_start), ("changed", changed)) if way)
    if kind in ("none", "plain"):
        return Subject("plain", start=start, options=ways)
    if module and kind not in names.CONTROLLERS:  # two users may have called theirs the same
        ways += (("module", module),)
    plain = ((key, str(what) if isinstance(what, list) else what) for key, what in more.items())
    options = tuple((key, what) for key, what in plain if what != getattr(_USUAL, key, None))
    return Subject(kind, numbers if value is None else (value,), start, ways + options)


def _parts(name: str) -> tuple[str, tuple[float, ...]]:
    kind, _, rest = name.partition("(")
    try:
        numbers = tuple(float(number) for number in rest.rstrip(")").split(",") if number.strip())
    except ValueError:
        return name, ()
    return (kind, numbers) if all(map(math.isfinite, numbers)) else (name, ())
