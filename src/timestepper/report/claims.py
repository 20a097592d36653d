"""What the paper states, as data: one TOML file per table or figure in ``claims/``, never a measured value.

A mistyped name would be a statement that stays "not run", so all that a file says is checked as it is read.
"""

import dataclasses
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper import names, validate
from timestepper.errors import RecordError
from timestepper.records.subject import Subject, subject
from timestepper.report.names import DATA, unknown_model
from timestepper.validate import limited

_PACKAGE = Path(__file__).resolve().parents[1]
FOLDER = next((path for path in (_PACKAGE.parents[1] / "claims", _PACKAGE / "claims") if path.is_dir()), Path("claims"))
COUNTS = ("parameters_train", "parameters_inference", "gflops_train", "gflops_inference")
NOISE_LEVELS = tuple(level / 10 for level in range(11))  # that records have
AUGMENTS = ("none", "shift", "crop_flip", "resized_crop")
_FORMULAS = tuple(name for name, kind in names.CONTROLLERS.items() if kind.paper)
_SIDES, _OVER = ("low", "high", "on"), (("test_error", "last_stage_mean"), ("over", "on"))
# For every check the quantities that it can look at and the keys that it cannot do without.
_CHECKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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
    "settled": (("",), ("state", "why")),
}


@dataclass(frozen=True)
class Line:
    """One line of a table: errors in percent, parameters in millions, GFLOPs, or step sizes by block, such as C-5_3."""

    label: str
    model: str
    controller: str
    paper: dict[str, float]
    data: str = limited(choices=tuple(DATA))
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
    controller: str = limited(choices=_FORMULAS)


@dataclass(frozen=True)
class Structure:
    """One stage of Table 6: [kernel, channels] of each convolution, [inputs, outputs] of each controller layer."""

    label: str
    model: str
    output_size: int = limited(least=1)
    blocks: int = limited(least=1)
    convolutions: tuple[tuple[int, ...], ...] = limited(least=1)
    input: tuple[int, ...] = limited(least=1)
    gates: tuple[int, ...] = limited(least=1)
    output: tuple[int, ...] = limited(least=1)


@dataclass(frozen=True)
class PaperOptimiser:
    """Settings of a recipe's optimiser; without one, any will do."""

    kind: str | None = None
    lr: float | None = limited(None, least=0, most=1e6)
    momentum: float | None = limited(None, least=0, most=1e6)
    nesterov: bool | None = None
    beta2: float | None = limited(None, least=0, most=1e6)
    weight_decay: float | None = limited(None, least=0, most=1e6)
    label_smoothing: float | None = limited(None, least=0, most=1e6)


@dataclass(frozen=True)
class PaperRates:
    """Settings of a recipe's schedule of learning rates; without one, any will do."""

    law: str | None = None
    milestones: tuple[float, ...] | None = limited(None, least=0, most=1e6)
    every: int | None = None
    factor: float | None = limited(None, least=0, most=1e6)
    warmup_epochs: float | None = limited(None, least=0, most=1e6)


@dataclass(frozen=True)
class PaperSchedule:
    """How the paper trains on a data set; ``augment`` is the recipe's ``data.augment``."""

    data: str = limited(choices=tuple(DATA))
    epochs: int = limited(least=1)
    batch_size: int = limited(least=1)
    augment: str | None = limited(None, choices=AUGMENTS)
    optimiser: PaperOptimiser = PaperOptimiser()
    schedule: PaperRates = PaperRates()

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What a recipe must say, as JSON has it."""
        parts = {"data": {"augment": self.augment}, "optimiser": vars(self.optimiser), "schedule": vars(self.schedule)}
        plain = {part: {k: list(v) if isinstance(v, tuple) else v for k, v in of.items()} for part, of in parts.items()}
        return {part: {key: value for key, value in of.items() if value is not None} for part, of in plain.items()}


@dataclass(frozen=True)
class Side:
    """The runs of a controller, with its settings by a recipe's names where they are unusual, and of a network where
    one is named; or a solution of Figure 1."""

    controller: str = ""
    last_norm_init: float | None = limited(None, least=0)
    network_start: str | None = None  # the recipe's ``model.start``
    start: str = "paper"
    reduction: int | None = limited(None, least=1)
    descriptor: str = limited("mean", choices=("mean", "visible"))
    descriptor_gradient: bool = True
    weight_decay: float | None = limited(None, least=0)
    model: str = ""
    solution: str = limited("", choices=("large", "small", "rkf"))

    @property
    def subject(self) -> Subject:
        settings = {key: value for key, value in vars(self).items() if key not in ("controller", "model", "solution")}
        return subject(self.controller, **settings)


@dataclass(frozen=True)
class Place:
    """A data set, and a network on it where one is named."""

    data: str = limited(choices=tuple(DATA))
    model: str = ""


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
    check: str = limited(choices=tuple(_CHECKS))
    quantity: str = ""
    words: str = ""
    low: Side | None = None
    high: Side | None = None
    group: Side | None = None
    on: tuple[Place, ...] = ()
    stand_in: tuple[Place, ...] = ()
    over: tuple[str, ...] = ()
    stand_over: tuple[str, ...] = ()
    direction: str = limited("", choices=("rising", "falling"))
    noise: tuple[float, ...] = ()
    value: float | None = None
    margin: float | None = limited(None, least=0, most=100)
    gain: float | None = limited(None, least=0, most=100)
    caution: str = ""
    state: str = limited("", choices=("no effect possible", "supported", "contradicted", "not run"))
    why: str = ""
    by: str = ""


@dataclass(frozen=True)
class Claim:
    """One table or figure of the paper; ``ours`` are questions that the paper does not ask."""

    name: str
    place: str
    title: str
    ours: bool = False
    row: tuple[Line, ...] = ()
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
            for statement in claim.statement:
                if statement.id in owners:
                    raise RecordError(f"{path}: statement {statement.id}: {owners[statement.id]} has this id already")
            owners |= {statement.id: path for statement in claim.statement}
            claims[path.stem] = claim
        except RecordError as error:
            problems.append(str(error))
    if not files:
        problems.append(f"{folder} holds no claim files (*.toml); give the folder with --claims")
    return claims, problems


def read_claim(path: Path) -> Claim:
    """One claim file."""
    source = validate.Source(path, RecordError)
    claim = validate.build(Claim, validate.read(path, source), source)
    if claim.name != path.stem:
        raise source.fault("name", f"is {claim.name!r}; it must be the file's name, {path.stem!r}")
    for key, part in _parts(claim):
        for mistake in _mistakes(part):
            raise source.fault(key, mistake)
    return claim


def _parts(part: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """All tables of a claim, each with its place in the file."""
    yield key, part
    for name, value in vars(part).items():
        where = f"{key}.{name}" if key else name
        if dataclasses.is_dataclass(value):
            yield from _parts(value, where)
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            for number, item in enumerate(value, 1):
                yield from _parts(item, f"{where}[{number}]")


def _mistakes(part: Any) -> Iterator[str]:
    """What the types leave open."""
    models = (getattr(part, "model", ""), *getattr(part, "over", ()), *getattr(part, "stand_over", ()))
    yield from filter(None, (unknown_model(model) for model in models if model))
    if (controller := getattr(part, "controller", "plain")) and not _is_known(subject(controller)):
        yield f"controller {controller!r} is not known; allowed are plain, {names.known()}"
    if isinstance(part, Structure):
        pairs = (part.input, part.gates, part.output, *part.convolutions)
        yield from (f"{list(pair)} must be two numbers" for pair in pairs if len(pair) != 2)
    if isinstance(part, Claim):
        yield from _mistakes_of_tables(part)
        ids = [statement.id for statement in part.statement]
        yield from (f"statement {one}: this file has this id already" for one in ids if ids.count(one) > 1)
    if isinstance(part, Statement):
        yield from _mistakes_of_statements(part)


def _is_known(found: Subject) -> bool:
    numbers = {"plain": 0} | {name: len(kind.options) for name, kind in names.CONTROLLERS.items()}
    return numbers.get(found.kind) == len(found.value)


def _mistakes_of_tables(claim: Claim) -> Iterator[str]:
    results = {"test_error": 100.0} | dict.fromkeys(COUNTS, 1e5)
    blocks = {key: 1.0 for line in claim.steps for key in line.paper if re.fullmatch(r"C-[2-9]_[1-9]\d*", key)}
    for lines, most, form in (
        (claim.row, results, f"allowed are {', '.join(results)}"),
        (claim.steps, blocks, "write blocks as C-3_1"),
    ):
        for label, key, value in ((line.label, *item) for line in lines for item in line.paper.items()):
            if key not in most:
                yield f"paper of {label}: {key!r} is not known; {form}"
            elif not 0 <= value <= most[key]:
                yield f"paper of {label}: {key} must be a number from 0 to {most[key]:g}, not {value:g}"
    for line in claim.steps:
        if odd := sorted(line.paper.keys() ^ claim.steps[0].paper.keys()):
            yield f"paper of {claim.steps[0].label} and {line.label}: only one has {', '.join(odd)}"


def _mistakes_of_statements(statement: Statement) -> Iterator[str]:
    quantities, needed = _CHECKS[statement.check]
    if statement.quantity not in quantities:
        yield f"quantity {statement.quantity!r} is not known; allowed are {', '.join(quantities)}"
    if statement.check in ("trend", "keeps"):
        needed += ("direction", *(("low", "high") if statement.group is None else ()))
    if statement.quantity in ("noise_error", "noise_loss"):
        needed += ("noise",)
    yield from (f"{key} is missing" for key in needed if getattr(statement, key) in (None, (), ""))
    for level in statement.noise:
        if not any(math.isclose(level, known) for known in NOISE_LEVELS):
            yield f"noise {level:g} is never measured; levels are 0, 0.1 … 1"
    wanted, other = ("solution", "controller") if statement.quantity == "solution" else ("controller", "solution")
    for key in ("low", "high", "group"):
        side = getattr(statement, key)
        if side and (not getattr(side, wanted) or getattr(side, other)):
            yield f"{key} must be {{ {wanted} = … }}"
