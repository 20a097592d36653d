"""One finished run as a value: what of a record tables, figures and verdicts use, checked as it is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from timestepper import validate
from timestepper.records.curves import Arrays
from timestepper.records.subject import Subject, subject_of
from timestepper.validate import limited

MOST = 3.5e38  # no float32 holds more, and sums and squares of such numbers fit a float
NOISE_LEVELS = tuple(level / 10 for level in range(11))  # that a finished network is measured at
SEARCHES = ("power", "adversarial", "random")
_NUMBER, _AMOUNT, _SHARE = {"least": -MOST, "most": MOST}, {"least": 0, "most": MOST}, {"least": 0, "most": 1}
_FOLLOWED = "epochs.profiles.step_sizes/"
_CURVES = ("loss", "error", "steps", "step_sizes")
_NEEDED: dict[tuple[str, str], tuple[Any, dict[str, float]]] = {  # of a recipe
    ("run", "epochs"): (int, {"least": 1}),
    ("run", "seed"): (int, {}),
    ("model", "name"): (str, {}),
    ("model", "last_norm_init"): (float | None, _NUMBER),
    ("model", "start"): (str | None, {}),
    ("model", "options"): (str | None, {}),
    ("controller", "kind"): (str, {}),
    ("controller", "value"): (float | None, _NUMBER),
    ("data", "name"): (str, {}),
    ("data", "batch_size"): (int, {}),
    ("optimiser", "lr"): (float | None, _NUMBER),
}
Setting = bool | int | float | str | None | list[bool | int | float | str]
Rows = dict[str, Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Outcome:
    """Figures on the test set; the error is a fraction."""

    error: float = field(metadata=_SHARE)


@dataclass(frozen=True)
class Final:
    """What the weights of the last epoch do; ``folded`` without their controller."""

    test: Outcome
    folded: Outcome | None = None
    fold_difference: float | None = field(default=None, metadata=_AMOUNT)
    descriptor_influence: dict[str, float] = field(default_factory=dict, metadata=_NUMBER)

    @property
    def fold(self) -> tuple[float, float] | None:
        """The error of the folded network, and by how much a logit of it differs at most."""
        return None if self.folded is None else (self.folded.error, self.fold_difference or 0.0)


@dataclass(frozen=True)
class Noise:
    """Figures under Gaussian input noise: for each level one error (a fraction) and one loss per draw."""

    levels: tuple[float, ...] = field(metadata=_AMOUNT)
    error: tuple[tuple[float, ...], ...] = field(metadata=_SHARE)
    loss: tuple[tuple[float, ...], ...] = field(metadata=_NUMBER)


@dataclass(frozen=True)
class Stability:
    """Natural logarithms, block by block in depth order: Proposition 1's factors and the growth that was measured."""

    blocks: tuple[str, ...]
    log_bound: tuple[float, ...] = field(metadata=_NUMBER)
    log_growth: dict[str, tuple[float, ...]] = field(metadata=_NUMBER)
    log_end_to_end: dict[str, float] = field(metadata=_NUMBER)
    step_sizes: tuple[float, ...] = field(default=(), metadata=_NUMBER)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is known of every run that came to an end, good or bad."""

    kind: str
    name: str
    seed: int
    recipe: dict[str, dict[str, Setting]]
    data_sha256: str
    device: str
    commit: str
    versions: dict[str, str]
    world: int = limited(1, least=1)  # processes that share each batch; norms see a part of it
    changed: str = ""  # in its recipe, while it ran
    path: str = ""

    @property
    def subject(self) -> Subject:
        return subject_of(self.recipe, self.changed)


@dataclass(frozen=True, kw_only=True)
class Record(Result):
    """One finished run; ``loss``, ``error`` and ``steps`` go over its epochs, ``step_sizes`` are those at its end."""

    kind: str = limited(choices=("training",))
    final: Final
    wall_seconds: float = field(metadata=_AMOUNT)
    gpu_seconds: float | None = field(default=None, metadata=_AMOUNT)  # its share of the card's time
    noise: Noise | None = None
    stability: Stability | None = None
    loss: Sequence[float] = ()
    error: Sequence[float | None] = ()  # None where an epoch was not evaluated
    steps: Rows = field(default_factory=dict)  # by stage, epoch and block
    step_sizes: Rows = field(default_factory=dict)  # by stage, block and channel


def build(table: Mapping[str, Any], arrays: Arrays, source: validate.Source) -> Record:
    """A record from its tables and its curves; the first mistake is named."""
    record = validate.build(Record, {k: v for k, v in table.items() if k not in _CURVES}, source, extra=True)
    check_recipe(record, source)
    epochs: Any = record.recipe["run"]["epochs"]
    done = arrays["epochs.epoch"].tolist() if "epochs.epoch" in arrays else []
    if len(done) != epochs or done != list(range(1, epochs + 1)):
        raise source.fault("", f"{len(done)} of {epochs} epochs; a run that did not finish is not reported")
    if record.final.folded and record.final.fold_difference is None:
        raise source.fault("final.fold_difference", "is missing")
    if noise := record.noise:
        _check_alike("noise", (noise.levels, noise.error, noise.loss), all((*noise.error, *noise.loss)), source)
    if growth := record.stability:
        searched = set(SEARCHES) <= set(growth.log_growth) and set(SEARCHES) <= set(growth.log_end_to_end)
        _check_alike("stability", (growth.log_bound, *growth.log_growth.values()), searched, source)
    return replace(record, **_curves(arrays, epochs, source))


def check_recipe(record: Result, source: validate.Source) -> None:
    """Refuse a record whose recipe lacks what tables need, or is that of another seed."""
    for (section, key), (kind, limits) in _NEEDED.items():
        setting = record.recipe.get(section, {}).get(key)
        validate.convert(setting, kind, source, f"recipe.{section}.{key}", limits)
    if record.seed != record.recipe["run"]["seed"]:
        raise source.fault("seed", f"is {record.seed}, and recipe.run.seed {record.recipe['run']['seed']}")


def _check_alike(key: str, lists: Sequence[Sequence], whole: bool, source: validate.Source) -> None:
    lengths = {len(values) for values in lists}
    if not whole or len(lengths) > 1 or 0 in lengths:
        raise source.fault(key, "has lists that are missing, empty or of different lengths")


def _curves(arrays: Arrays, epochs: int, source: validate.Source) -> dict[str, Any]:
    """The long lists of a record; step sizes over training are there for all stages or for none."""

    def numbers(name: str, shape: tuple[int | None, ...], least: float = -MOST, most: float = MOST) -> list[Any]:
        found = arrays.get(name)
        sound = found is not None and found.dtype.kind in "if" and found.size and found.ndim == len(shape)
        if found is None or not sound or any(b not in (None, a) for a, b in zip(found.shape, shape, strict=True)):
            raise source.fault(name, "is missing or not what it must be")
        if not (least <= float(found.min()) and float(found.max()) <= most):  # which is never so for "not a number"
            raise source.fault(name, f"has numbers that cannot be (allowed: {least:g} to {most:g})")
        return found.tolist()

    errors: dict[int, float] = {}
    if (name := "epochs.test.error") in arrays:
        seen = arrays[f"{name}@"].tolist() if f"{name}@" in arrays else range(epochs)
        errors = dict(zip(seen, numbers(name, (len(seen),), 0, 1), strict=True))
    followed = [name.removeprefix(_FOLLOWED) for name in arrays if name.startswith(_FOLLOWED) and name[-1] != "@"]
    stages = [name.removeprefix("step_sizes.") for name in arrays if name.startswith("step_sizes.")]
    sizes = {stage: numbers(f"step_sizes.{stage}", (None, None)) for stage in dict.fromkeys([*stages, *followed])}
    return {
        "loss": numbers("epochs.train.loss", (epochs,)),
        "error": [errors.get(place) for place in range(epochs)],
        "step_sizes": sizes,
        "steps": {s: numbers(_FOLLOWED + s, (epochs, len(rows))) for s, rows in sizes.items()} if followed else {},
    }
