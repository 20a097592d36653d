"""What the paper states, as data: one TOML file per table or figure in ``claims/``, never a measured value."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = next((path for path in (_PACKAGE.parents[1] / "claims", _PACKAGE / "claims") if path.is_dir()), Path("claims"))


@dataclass(frozen=True)
class Row:
    """One line of a table of results: errors in percent, parameters in millions, GFLOPs as printed."""

    label: str
    data: str
    model: str
    controller: str
    paper: dict[str, float]
    origin: str = ""


@dataclass(frozen=True)
class Formula:
    """One line of Table 1."""

    label: str
    controller: str
    training: str
    inference: str


@dataclass(frozen=True)
class Steps:
    """One line of Table 4: step sizes by the paper's block names, such as C-5_3."""

    label: str
    data: str
    model: str
    controller: str
    paper: dict[str, float]


@dataclass(frozen=True)
class Structure:
    """One stage of Table 6: [kernel, channels] of each convolution, [inputs, outputs] of each controller layer."""

    label: str
    model: str
    output_size: int
    blocks: int
    convolutions: tuple[tuple[int, ...], ...]
    input: tuple[int, ...]
    gates: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """How the paper trains on a data set; ``optimiser`` and ``schedule`` are settings of these parts of a recipe.

    ``augment`` is the recipe's ``data.augment``; without it any will do.
    """

    data: str
    epochs: int
    batch_size: int
    augment: str | None = None
    optimiser: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        data = {} if self.augment is None else {"augment": self.augment}
        return {"data": data, "optimiser": self.optimiser, "schedule": self.schedule}


@dataclass(frozen=True)
class Statement:
    """Something that the paper says and that runs can confirm or refute.

    ``text`` is ours, ``words`` are the paper's own. ``low`` and ``high`` (or ``group``) say which runs are compared,
    ``on`` where the paper does it, ``stand_in`` on what smaller task the same thing can be looked at, ``gain`` the size
    that the paper gives. ``margin`` is ours: the paper says "about" without a number. ``caution`` says why the runs
    that there are must not decide. What no run decides is ``settled``: ``state`` and ``why``, ``by`` the test that
    shows it.
    """

    id: str
    text: str
    check: str
    quantity: str = ""
    words: str = ""
    low: dict[str, str] | None = None
    high: dict[str, str] | None = None
    group: dict[str, str] | None = None
    on: tuple[dict[str, str], ...] = ()
    stand_in: tuple[dict[str, str], ...] = ()
    over: tuple[str, ...] = ()
    stand_over: tuple[str, ...] = ()
    direction: str = ""
    noise: tuple[float, ...] = ()
    value: float | None = None
    margin: float | None = None
    gain: float | None = None
    caution: str = ""
    state: str = ""
    why: str = ""
    by: str = ""


@dataclass(frozen=True)
class Claim:
    """One table or figure of the paper; ``ours`` are questions that the paper does not ask."""

    name: str
    place: str
    title: str
    ours: bool = False
    row: tuple[Row, ...] = ()
    formula: tuple[Formula, ...] = ()
    steps: tuple[Steps, ...] = ()
    structure: tuple[Structure, ...] = ()
    schedule: tuple[Schedule, ...] = ()
    statement: tuple[Statement, ...] = ()


Claims = dict[str, Claim]
