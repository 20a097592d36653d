"""A sweep over several GPUs: one process for each, with its share of the runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from timestepper.engine.signals import Signals
from timestepper.terminal import complain


def default_processes(on_gpu: bool) -> int:
    """One for each GPU; one where there is none."""
    import torch

    return max(1, torch.cuda.device_count()) if on_gpu else 1


def spread(arguments: Sequence[str], parts: Sequence[Sequence[int]], signals: Signals) -> int:
    """Start this command once for every part of the runs, each on its GPU; the worst exit code."""
    # Sessions of their own: Ctrl-C reaches this process alone, which passes it on once (twice means: leave at once).
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "timestepper", "sweep", *arguments, "--share", ",".join(map(str, part))],
            env=os.environ | _gpu(index),
            start_new_session=True,
        )
        for index, part in enumerate(parts)
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
            complain(f"process {index} of the sweep was ended by {name}; run it again to go on")
    return max(code if code >= 0 else 1 for code in codes)


def shares(kinds: Mapping[int, str], processes: int) -> list[list[int]]:
    """Which runs each process gets. A kind compiles once where its runs stay together, so only large ones are cut."""
    most = -(-len(kinds) // processes)
    parts: list[list[int]] = [[] for _ in range(processes)]
    for kind in dict.fromkeys(kinds.values()):
        members = [number for number, other in kinds.items() if other == kind]
        for piece in (members[start : start + most] for start in range(0, len(members), most)):
            min(parts, key=len).extend(piece)
    return [sorted(part) for part in parts if part]


def _gpu(index: int) -> dict[str, str]:
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return {"CUDA_VISIBLE_DEVICES": names[index % count]}
