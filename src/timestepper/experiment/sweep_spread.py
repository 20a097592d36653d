"""A sweep over several GPUs: one process for each, with its share of the runs."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from timestepper.engine.signals import Signals


def default_processes(on_gpu: bool) -> int:
    """One for each GPU; one where there is none."""
    import torch

    return max(1, torch.cuda.device_count()) if on_gpu else 1


def spread(arguments: Sequence[str], numbers: Sequence[int], processes: int, signals: Signals) -> int:
    """Start this command once per process, each with its share of the runs and its GPU; the worst exit code."""
    # Sessions of their own: Ctrl-C reaches this process alone, which passes it on once (twice means: leave at once).
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "timestepper", "sweep", *arguments, "--share", ",".join(map(str, share))],
            env=os.environ | _gpu(index),
            start_new_session=True,
        )
        for index, share in enumerate(shares(numbers, processes))
    ]
    told = 0
    while any(child.poll() is None for child in children):
        if signals.stop and not told:
            told = signals.stop
            for child in children:
                if child.poll() is None:
                    child.send_signal(told)
        if signals.save:
            signals.save = 0
            for child in children:
                if child.poll() is None:
                    child.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
    codes = [child.returncode for child in children]
    for index, code in enumerate(codes):
        if code < 0:
            name = signal.Signals(-code).name
            print(f"error: process {index} of the sweep was ended by {name}; run it again to go on", file=sys.stderr)
    return max(code if code >= 0 else 1 for code in codes)


def shares(numbers: Sequence[int], processes: int) -> list[Sequence[int]]:
    """Even parts of neighbours: seeds of one kind stay together, and with them the code that is compiled once."""
    ends = [len(numbers) * index // processes for index in range(processes + 1)]
    return [numbers[begin:end] for begin, end in itertools.pairwise(ends)]


def _gpu(index: int) -> dict[str, str]:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return {"CUDA_VISIBLE_DEVICES": names[index % count]}
