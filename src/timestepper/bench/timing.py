"""Timing of several variants side by side: rounds in turn, so that drift hits all alike, and ratios within a round."""

import platform
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from timestepper import records


class Spread(NamedTuple):
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        return cls(*np.quantile(values, (0.5, 0.25, 0.75)).tolist())


class Timing(NamedTuple):
    """Milliseconds of one call, and the ratio to the first variant in the same round."""

    ms: Spread
    ratio: Spread


def interleaved(
    variants: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int = 15, seconds: float = 6.0
) -> dict[str, Timing]:
    """Time each variant in turn, round after round, within about so many seconds in all."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    once = {name: _timed(call, device, 1) for name, call in variants.items()}
    share = seconds * 1000 / rounds / len(variants)  # milliseconds for one variant in one round
    calls = {name: max(1, min(200, int(share / max(ms, 1e-3)))) for name, ms in once.items()}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            times[name].append(_timed(variants[name], device, calls[name]))
    base = times[names[0]]
    ratios = {name: [a / b for a, b in zip(ms, base, strict=True)] for name, ms in times.items()}
    return {name: Timing(Spread.of(times[name]), Spread.of(ratios[name])) for name in names}


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, the device's work included."""
    wait_for(device)
    start = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(call: Callable[[], object], device: torch.device, calls: int) -> float:
    """Milliseconds per call; on CUDA between events on the device, after one call to fill the queue."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - start) * 1000 / calls
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / calls


def environment(device: torch.device, commit: str | None = None) -> dict[str, str]:
    """Card, versions and commit of a measurement; ``commit`` is for a copy of the source that carries no history."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    cuda = torch.version.cuda or "none"
    return {"card": card, "commit": commit or records.commit(), "cuda": cuda, **records.versions()}
