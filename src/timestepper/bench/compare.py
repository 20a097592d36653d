"""One network in several variants, each beside plain: training step, inference, memory, parameters, compile time."""

import traceback
from dataclasses import asdict, dataclass

import torch
from torch import nn

import timestepper
from timestepper.api import is_attached
from timestepper.bench import peers
from timestepper.bench.environment import environment
from timestepper.bench.floor import measure_ceilings, training_floor
from timestepper.bench.timing import Timing, interleaved
from timestepper.bench.training import Case, Inference, TrainingStep, forget, runtime
from timestepper.errors import first_line
from timestepper.inspection import count_parameters

MODES_ON = {"cuda": ("eager", "graph", "compiled+graph"), "cpu": ("eager",)}
VARIANTS = ("plain", "literal", "lstm", "two_fc", "independent", *peers.PEERS)


@dataclass(frozen=True)
class Settings:
    """What is measured, and for how long."""

    model: str
    batch: int
    device: torch.device
    precision: str
    channels_last: bool
    modes: tuple[str, ...]
    variants: tuple[str, ...]
    pixels: int
    classes: int
    rounds: int
    seconds: float

    @property
    def shape(self) -> tuple[int, int, int]:
        return 3, self.pixels, self.pixels

    def case(self, mode: str) -> Case:
        how = runtime(mode, self.device, self.precision, self.channels_last)
        return Case(self.batch, self.shape, self.classes, how)

    def build(self, variant: str) -> nn.Module:
        return peers.build(variant, self.model, self.classes)


def compare(settings: Settings, say=print, commit: str | None = None) -> dict:
    """The result as plain data. A variant that fails leaves its error in its place and the others go on."""
    for variant in settings.variants:
        peers.check_name(variant)
    settings.case(settings.modes[0]).runtime.configure()
    with torch.random.fork_rng():
        floor = _floor(settings)
        return {
            "environment": environment(settings.device, commit),
            "settings": {**asdict(settings), "device": str(settings.device)},
            "floor": floor,
            "modes": {mode: _mode(settings, mode, floor["ms"], say) for mode in settings.modes},
        }


def _floor(settings: Settings) -> dict:
    """Fewest bytes and operations of plain's step, and the time they take at the ceilings of this run."""
    bf16 = settings.precision == "bf16"
    plain = training_floor(settings.build("plain"), settings.batch, settings.shape, 2 if bf16 else 4)
    ceilings = measure_ceilings(settings.device, torch.bfloat16 if bf16 else torch.float32)
    return {**asdict(plain), **asdict(ceilings), "ms": plain.milliseconds(ceilings)}


def _mode(settings: Settings, mode: str, floor: float, say) -> dict[str, dict]:
    """Every variant beside a plain network that stays; so at most two networks are in memory."""
    rows: dict[str, dict] = {}
    case = settings.case(mode)
    forget()
    plain_step = TrainingStep(settings.build("plain"), case)
    for variant in settings.variants:
        say(f"{mode}: {variant}")
        try:
            rows[variant] = _training(settings, variant, plain_step, floor)
        except Exception as error:
            rows[variant] = {"error": _reason(error)}
    del plain_step
    forget()
    plain_inference = Inference(settings.build("plain"), case)
    for variant in settings.variants:
        if "error" not in rows[variant]:
            try:
                rows[variant] |= _inference(settings, variant, plain_inference, case)
            except Exception as error:
                rows[variant]["inference_error"] = _reason(error)
    return rows


def _training(settings: Settings, variant: str, plain: TrainingStep, floor: float) -> dict:
    _forget_compiled(plain.case)
    step = TrainingStep(settings.build(variant), plain.case) if variant != "plain" else plain
    timed = _beside(settings, plain, step)
    return {
        "train_ms": asdict(timed.ms),
        "train_ratio": asdict(timed.ratio),
        "times_floor": timed.ms.median / floor,
        "first_step_s": step.first_seconds,
        "first_step_ratio": step.first_seconds / plain.first_seconds,
        "peak_bytes": step.peak_bytes,
        "peak_ratio": step.peak_bytes / plain.peak_bytes if plain.peak_bytes else None,
        "parameters": count_parameters(step.model),
        "parameters_ratio": count_parameters(step.model) / count_parameters(plain.model),
    }


def _inference(settings: Settings, variant: str, plain: Inference, case: Case) -> dict:
    _forget_compiled(case)
    network = settings.build(variant)
    folded = timestepper.fold(network) if is_attached(network) else None
    before = _beside(settings, plain, Inference(network, case) if variant != "plain" else plain)
    row: dict = {"inference_ms": asdict(before.ms), "inference_ratio": asdict(before.ratio)}
    if folded is not None:
        _forget_compiled(case)
        after = _beside(settings, plain, Inference(folded, case))
        row |= {
            "folded_ms": asdict(after.ms),
            "folded_ratio": asdict(after.ratio),
            "folded_parameters": count_parameters(folded),
        }
    return row


def _beside(settings: Settings, plain, other) -> Timing:
    """Timed in turn with plain, which is timed beside itself too: its ratio is the noise."""
    calls = {"plain": plain, "other": other}
    return interleaved(calls, settings.device, rounds=settings.rounds, seconds=settings.seconds)["other"]


def _forget_compiled(case: Case) -> None:
    """Compiled networks that run without a CUDA graph still need their code."""
    if case.runtime.cuda_graph or not case.runtime.compile:
        forget()


def _reason(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.name}: {first_line(error)}"
