"""What the paper states, as data: one TOML file per table or figure in ``claims/``, never a measured value.

A mistyped name would be a statement that stays "not run", so all that a file says is checked as it is read.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from timestepper import names, validate
from timestepper.errors import RecordError
from timestepper.recipe.schema import ControllerSettings, Recipe
from timestepper.records.record import NOISE_LEVELS
from timestepper.records.subject import Subject, subject
from timestepper.report.names import DATA, depth_of, unknown_model
from timestepper.validate import Source, limited

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = next((path for path in (_PACKAGE.parents[1] / "claims", _PACKAGE / "claims") if path.is_dir()), Path("claims"))
COUNTS = ("parameters_train", "parameters_inference", "gflops_train", "gflops_inference")
_PAPER = Source("the paper's schedule", RecordError)
_SIDES, _OVER = ("low", "high", "on"), (("test_error", "last_stage_mean"), ("over", "on", "direction"))
# For every check the quantities that it can look at and the keys that it cannot do without.
CHECKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "lower": (("test_error", "training_error", "noise_error", "noise_loss", "noise_loss_rise"), _SIDES),
    "similar": (("test_error",), _SIDES),
    "trend": _OVER,
    "keeps": _OVER,
    "most": (("test_error",), (*_SIDES, "over")),
    "near": (("first_steps", "all_first_steps", "last_stage"), ("group", "on", "value", "margin")),
    "increasing": (("last_stage",), ("group", "on", "margin")),
    "ranks": (("noise_rise",), ("on", "noise")),
    "stable": (("solution",), ("low",)),
    "unstable": (("solution",), ("low",)),
    "fewer_steps": (("solution",), ("low", "high")),
    "settled": (("",), ("state", "why", "by")),
}


def _unknown_controller(controller: str) -> str:
    found = subject(controller)
    numbers = {"plain": 0} | {name: len(kind.options) for name, kind in names.CONTROLLERS.items()}
    return "" if numbers.get(found.kind) == len(found.value) else f"allowed are plain, {names.known()}"


@dataclass(frozen=True)
class Line:
    """One line of a table: errors in percent, parameters in millions, GFLOPs, or step sizes by block, such as C-5_3."""

    label: str
    paper: dict[str, float]
    data: str = limited(choices=tuple(DATA))
    model: str = limited(wrong=unknown_model)
    controller: str = limited(wrong=_unknown_controller)
    origin: str = ""

    @property
    def subject(self) -> Subject:
        return subject(self.controller)


@dataclass(frozen=True)
class Formula:
    """One line of Table 1."""

    label: str
    training: str
    inference: str
    controller: str = limited(choices=tuple(name for name, kind in names.CONTROLLERS.items() if kind.paper))


@dataclass(frozen=True)
class Note:
    """Why a count of ours differs from the paper's, of all networks or those of a family or controller."""

    text: str
    quantity: str = limited(choices=COUNTS)
    family: str = ""
    controller: str = limited("", wrong=_unknown_controller)

    def applies(self, line: Line, quantity: str) -> bool:
        return quantity == self.quantity and self.family in line.model and self.controller in ("", line.controller)


@dataclass(frozen=True)
class Structure:
    """One stage of Table 6: [kernel, channels] of each convolution, [inputs, outputs] of each controller layer."""

    label: str
    model: str = limited(wrong=unknown_model)
    output_size: int = limited(least=1)
    blocks: int = limited(least=1)
    convolutions: tuple[tuple[int, int], ...] = limited(least=1)
    input: tuple[int, int] = limited(least=1)
    gates: tuple[int, int] = limited(least=1)
    output: tuple[int, int] = limited(least=1)


@dataclass(frozen=True)
class PaperSchedule:
    """How the paper trains on a data set, by a recipe's names; of what is not said, anything will do."""

    data: str = limited(choices=tuple(DATA))
    epochs: int = limited(least=1)
    batch_size: int = limited(least=1)
    parts: int | None = limited(None, least=1)  # of a batch, each of which has statistics of its own in a norm
    augment: str | None = None
    optimiser: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)

    def settings(self, source: Source = _PAPER, key: str = "") -> dict[str, str]:
        """As conditions of a task have them; ``source`` and ``key`` name a mistake."""
        data = {} if self.augment is None else {"augment": self.augment}
        tables = {"data": data, "optimiser": self.optimiser, "schedule": self.schedule}
        recipe = validate.build(Recipe, tables, source, key)
        given = ((part, setting) for part, table in tables.items() for setting in table)
        return {f"{part}.{name}": json.dumps(getattr(getattr(recipe, part), name)) for part, name in given}


@dataclass(frozen=True)
class Side(ControllerSettings):
    """The runs of a controller, its settings by a recipe's names, and of a network; or a solution of Figure 1."""

    controller: str = limited("", wrong=_unknown_controller)
    last_norm_init: float | None = limited(None, least=0)
    network_start: str | None = None  # the recipe's ``model.start``
    model: str = limited("", wrong=unknown_model)
    solution: str = limited("", choices=("large", "small", "rkf"))

    @property
    def subject(self) -> Subject:
        others = ("kind", "controller", "model", "solution")
        return subject(self.controller, **{key: value for key, value in vars(self).items() if key not in others})


@dataclass(frozen=True)
class Place:
    """A data set, a network on it with its options, and a learning rate and epochs of warm-up where they are named.

    Without a ``model`` it is the networks that the statement itself names, or else every ResNet with batch norm. Runs
    with seeds before ``first_seed`` do not count: by them it was chosen what to compare. Nor do those after
    ``last_seed``, which were added when these were known.
    """

    data: str = limited(choices=tuple(DATA))
    model: str = limited("", wrong=unknown_model)
    lr: float | None = limited(None, least=0)
    warmup: float | None = limited(None, least=0)
    options: str = ""  # the recipe's ``model.options``; a network with others is another network
    first_seed: int = limited(0, least=0)
    last_seed: int | None = limited(None, least=0)


@dataclass(frozen=True)
class Statement:
    """Something that the paper says and that runs can confirm or refute.

    ``text`` is ours, ``words`` are the paper's own. ``low`` and ``high`` (or ``group``) say which runs are compared,
    ``on`` where the paper does it, ``stand_in`` on what smaller task the same thing can be looked at, ``gain`` the size
    that the paper gives. ``margin`` is ours: the paper says "about" without a number. ``caution_in_bf16`` says why runs
    in that precision must not decide. What no run decides is ``settled``: ``state`` and ``why``, ``by`` the test that
    shows it.
    """

    id: str
    text: str
    check: str = limited(choices=tuple(CHECKS))
    quantity: str = ""
    words: str = ""
    low: Side | None = None
    high: Side | None = None
    group: Side | None = None
    on: tuple[Place, ...] = ()
    stand_in: tuple[Place, ...] = ()
    over: tuple[str, ...] = limited((), wrong=unknown_model)
    stand_over: tuple[str, ...] = limited((), wrong=unknown_model)
    direction: str = limited("", choices=("rising", "falling"))
    noise: tuple[float, ...] = limited(
        (), wrong=lambda level: "" if round(level, 9) in NOISE_LEVELS else "records have levels 0, 0.1 … 1"
    )
    value: float | None = None
    margin: float | None = limited(None, least=0, most=100)
    gain: float | None = limited(None, least=0, most=100)
    caution_in_bf16: str = ""
    state: str = limited("", choices=("no effect possible", "supported", "contradicted", "not run"))
    why: str = ""
    by: str = ""

    @property
    def sides(self) -> list[Side]:
        """The groups of runs that it is about."""
        return [side for side in (self.low, self.high, self.group) if side]


@dataclass(frozen=True)
class Claim:
    """One table or figure of the paper; ``ours`` are questions that the paper does not ask."""

    name: str
    place: str
    title: str
    ours: bool = False
    row: tuple[Line, ...] = ()
    note: tuple[Note, ...] = ()
    formula: tuple[Formula, ...] = ()
    steps: tuple[Line, ...] = ()
    structure: tuple[Structure, ...] = ()
    schedule: tuple[PaperSchedule, ...] = ()
    statement: tuple[Statement, ...] = ()


Claims = dict[str, Claim]


def load_claims(folder: Path = FOLDER) -> tuple[Claims, list[str]]:
    """All claims by name, and a message for each file that has a mistake; the other files are not affected."""
    claims: Claims = {}
    owners: dict[str, Path] = {}  # of statements
    problems = []
    files = sorted(folder.glob("*.toml"))
    for path in files:
        try:
            claim = read_claim(path)
            taken = dict(owners)
            for name in (statement.id for statement in claim.statement):
                if name in taken:
                    raise RecordError(f"{path}: statement {name}: {taken[name]} has this id already")
                taken[name] = path
            owners, claims[path.stem] = taken, claim
        except RecordError as error:
            problems.append(str(error))
    if not files:
        problems.append(f"{folder} holds no claim files (*.toml); give the folder with --claims")
    return claims, problems


def read_claim(path: Path) -> Claim:
    """One claim file."""
    source = Source(path, RecordError)
    claim = validate.build(Claim, validate.read(path, source), source)
    if claim.name != path.stem:
        raise source.fault("name", f"is {claim.name!r}; it must be the file's name, {path.stem!r}")
    limits = {"test_error": 100.0} | dict.fromkeys(COUNTS, 1e5)
    for line in (*claim.row, *claim.steps):
        for key, value in line.paper.items():
            most = 1.0 if re.fullmatch(r"C-[2-9]_[1-9]\d*", key) else limits.get(key)
            if most is None or not 0 <= value <= most:
                known = f"from 0 to {most:g}" if most else f"one of {', '.join(limits)} or a block such as C-3_1"
                raise source.fault(f"paper of {line.label}:", f"{key} = {value:g} must be {known}")
    for line in claim.steps:
        if odd := sorted(line.paper.keys() ^ claim.steps[0].paper.keys()):
            both = f"paper of {claim.steps[0].label} and {line.label}:"
            raise source.fault(both, f"only one has {', '.join(odd)}")
    for number, schedule in enumerate(claim.schedule, 1):
        schedule.settings(source, f"schedule[{number}]")
    for number, statement in enumerate(claim.statement, 1):
        for mistake in _mistakes(statement):
            raise source.fault(f"statement[{number}]", mistake)
    return claim


def _mistakes(statement: Statement) -> Iterator[str]:
    """What does not go together."""
    quantities, needed = CHECKS[statement.check]
    if statement.quantity not in quantities:
        yield f"quantity {statement.quantity!r} is not known; allowed are {', '.join(quantities)}"
    if statement.check in ("trend", "keeps") and statement.group is None:
        needed += ("low", "high")
    if statement.quantity in ("noise_error", "noise_loss"):
        needed += ("noise",)
    yield from (f"{key} is missing" for key in needed if getattr(statement, key) in (None, (), ""))
    sides = [
        side and (side.subject if side.controller else side.solution, side.model)
        for side in (statement.low, statement.high)
    ]
    if statement.low is not None and sides[0] == sides[1]:
        yield "low and high are the same runs"
    if "over" in needed:
        for key in ("over", "stand_over"):
            depths = [depth_of(model) for model in getattr(statement, key)]
            if len(depths) == 1 or len({*depths}) < len(depths):
                yield f"{key} must name several networks, each of another depth"
        if any(place.model for place in (*statement.on, *statement.stand_in)):
            yield "a place names a model, which over does"
    wanted, other = ("solution", "controller") if statement.quantity == "solution" else ("controller", "solution")
    for key in ("low", "high", "group"):
        side = getattr(statement, key)
        if side and (not getattr(side, wanted) or getattr(side, other)):
            yield f"{key} must be {{ {wanted} = … }}"
