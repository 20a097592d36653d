"""One network in several variants, each beside plain: training step, inference, memory, parameters, compile time."""

import traceback
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

import timestepper
from timestepper import terminal
from timestepper.api import is_attached
from timestepper.bench import floor, peers
from timestepper.bench.steps import Inference, Settings, TrainingStep, forget
from timestepper.bench.timing import Timing, environment, interleaved
from timestepper.engine.runtime import Runtime
from timestepper.errors import first_line
from timestepper.inspection import count_parameters

MODES_ON = {"cuda": ("eager", "graph", "compiled+graph"), "cpu": ("eager",)}
VARIANTS = ("plain", "literal", "lstm", "two_fc", "independent", *peers.PEERS)
_COLUMNS = ("variant", "train ms", "ratio", "x floor", "inference", "folded", "memory", "parameters", "first step")


def compare(settings: Settings, say: Callable[[str], object] = print, commit: str | None = None) -> dict[str, Any]:
    """The result as plain data. A variant that fails leaves its error in its place and the others go on."""
    for variant in settings.variants:
        peers.check_name(variant)
    settings.runtime(settings.modes[0]).configure()
    bf16, shape = settings.precision == "bf16", (3, settings.pixels, settings.pixels)
    with torch.random.fork_rng():
        step = floor.training_floor(settings.build("plain"), settings.batch, shape, 2 if bf16 else 4)
        reached = floor.ceilings(settings.device, torch.bfloat16 if bf16 else torch.float32)
        least = floor.milliseconds(step, reached)
        return {
            "environment": environment(settings.device, commit),
            "settings": {**asdict(settings), "device": str(settings.device)},
            "floor": {**step, **reached, "ms": least},
            "modes": {mode: _mode(settings, mode, least, say) for mode in settings.modes},
        }


def _mode(settings: Settings, mode: str, least: float, say: Callable[[str], object]) -> dict[str, dict]:
    """Every variant beside a plain network that stays; so at most two networks are in memory."""
    rows: dict[str, dict] = {}
    runtime = settings.runtime(mode)
    forget()
    plain_step = TrainingStep(settings.build("plain"), settings, runtime)
    for variant in settings.variants:
        say(f"{mode}: {variant}")
        try:
            rows[variant] = _training(settings, variant, plain_step, least)
        except Exception as error:
            rows[variant] = {"error": _reason(error)}
    del plain_step
    forget()
    plain_inference = Inference(settings.build("plain"), settings, runtime)
    for variant in (variant for variant, row in rows.items() if "error" not in row):
        try:
            rows[variant] |= _inference(settings, variant, plain_inference)
        except Exception as error:
            rows[variant]["inference_error"] = _reason(error)
    return rows


def _reason(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {place.name}: {first_line(error)}"


def _training(settings: Settings, variant: str, plain: TrainingStep, least: float) -> dict[str, Any]:
    _forget_compiled(plain.runtime)
    step = plain if variant == "plain" else TrainingStep(settings.build(variant), settings, plain.runtime)
    timed = _beside(settings, plain, step)
    parameters = count_parameters(step.model)
    return {
        "train_ms": timed.ms._asdict(),
        "train_ratio": timed.ratio._asdict(),
        "times_floor": timed.ms.median / least,
        "first_step_s": step.first_seconds,
        "first_step_ratio": step.first_seconds / plain.first_seconds,
        "peak_bytes": step.peak_bytes,
        "peak_ratio": step.peak_bytes / plain.peak_bytes if plain.peak_bytes else None,
        "parameters": parameters,
        "parameters_ratio": parameters / count_parameters(plain.model),
    }


def _inference(settings: Settings, variant: str, plain: Inference) -> dict[str, Any]:
    """Inference of the network as it was trained and, where that has step sizes, folded."""
    network = settings.build(variant)
    networks = {"inference": network} | ({"folded": timestepper.fold(network)} if is_attached(network) else {})
    row: dict[str, Any] = {}
    for name, each in networks.items():
        _forget_compiled(plain.runtime)
        timed = _beside(settings, plain, plain if variant == "plain" else Inference(each, settings, plain.runtime))
        row |= {f"{name}_ms": timed.ms._asdict(), f"{name}_ratio": timed.ratio._asdict()}
    return row | ({"folded_parameters": count_parameters(networks["folded"])} if "folded" in networks else {})


def _beside(settings: Settings, plain: Callable[[], object], other: Callable[[], object]) -> Timing:
    """Timed in turn with plain, which is timed beside itself too: its ratio is the noise."""
    calls = {"plain": plain, "other": other}
    return interleaved(calls, settings.device, rounds=settings.rounds, seconds=settings.seconds)["other"]


def _forget_compiled(runtime: Runtime) -> None:
    """Compiled networks that run without a CUDA graph still need their code."""
    if runtime.cuda_graph or not runtime.compile:
        forget()


# -- on the terminal ---------------------------------------------------------------------------------------------------


def show(result: dict, console: Any = None) -> None:
    """One table per mode; a ratio is the median over rounds, in brackets its quartiles."""
    from rich.table import Table

    console = console or terminal.console(width=150)
    settings, least, where = result["settings"], result["floor"], result["environment"]
    for mode, rows in result["modes"].items():
        title = f"{settings['model']}, batch {settings['batch']}, {settings['precision']}, {mode}, on {where['card']}"
        shown = Table(title=title, title_justify="left")
        for column in _COLUMNS:
            shown.add_column(column, justify="left" if column == "variant" else "right", no_wrap=True)
        for name, row in rows.items():
            shown.add_row(name, *(_cells(row) if "error" not in row else ["failed"]))
        console.print(shown)
        for name, row in rows.items():
            for error in (row[key] for key in ("error", "inference_error") if key in row):
                console.print(f"{name}: {error}", markup=False)
    console.print(
        f"floor of the plain step: {least['ms']:.3f} ms; {least['features'] / 1e9:.3f} GB of features, "
        f"{least['weights'] / 1e9:.3f} GB of weights, {least['operations'] / 1e12:.3f} TFLOP, at "
        f"{least['bytes_per_s'] / 1e9:.0f} GB/s and {least['operations_per_s'] / 1e12:.2f} TFLOP/s measured in this run"
    )
    ratios = "ratios are to plain in the same round: median [quartiles]; plain beside itself shows the noise"
    console.print(ratios, markup=False)
    console.print("inference is before folding; folded is the plain network that fold returns")


def _cells(row: dict[str, Any]) -> list[str]:
    spreads = (row.get(f"{name}_ratio") for name in ("train", "inference", "folded"))
    ratio, *others = (f"{s['median']:.3f} [{s['low']:.3f}, {s['high']:.3f}]" if s else "" for s in spreads)
    peak = "" if row["peak_ratio"] is None else f"{row['peak_ratio']:.3f}"
    first = f"{row['first_step_s']:.1f} s ({row['first_step_ratio']:.2f})"
    times = (f"{row['train_ms']['median']:.3f}", ratio, f"{row['times_floor']:.1f}")
    return [*times, *others, peak, f"{row['parameters_ratio']:.4f}", first]
