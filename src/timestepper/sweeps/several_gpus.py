"""A sweep over several GPUs: one process for each, with its share of the runs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from timestepper.engine.signals import Signals
from timestepper.runs.run import Run
from timestepper.sweeps.ahead import kind_of
from timestepper.sweeps.beside import GPU_PROCESSES
from timestepper.terminal import complain


def spread(arguments: Sequence[str], parts: Sequence[Sequence[int]], signals: Signals) -> int:
    """Start this command once for every part of the runs, each on its device; the worst exit code."""
    # Sessions of their own: Ctrl-C reaches this process alone, which passes it on once (twice means: leave at once).
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "timestepper", "sweep", *arguments, "--share", ",".join(map(str, part))],
            env=os.environ | device(index, len(parts)),
            start_new_session=True,
        )
        for index, part in enumerate(parts)
    ]
    told = 0
    while any(child.poll() is None for child in children):
        if signals.stop and not told:
            told = signals.stop
            for child in children:
                child.send_signal(told)  # which leaves those alone that have ended
        if signals.save:
            signals.save = 0
            for child in children:
                child.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
    codes = [child.returncode for child in children]
    for index, code in enumerate(codes):
        if code < 0:
            name = signal.Signals(-code).name
            complain(f"process {index} of the sweep was ended by {name}; run it again to go on")
    return max(code if code >= 0 else 1 for code in codes)


def shares(runs: Sequence[Run], processes: int | None) -> list[list[Run]]:
    """Which runs each process gets; by default there is one for each GPU.

    A kind compiles once where its runs stay together, so only large ones are cut.
    """
    if processes is None:
        on_gpu = any(run.recipe.runtime.device != "cpu" for run in runs)
        processes = max(1, torch.cuda.device_count()) if on_gpu else 1
    most = -(-len(runs) // processes)
    parts: list[list[Run]] = [[] for _ in range(processes)]
    kinds = {run: kind_of(run.recipe) for run in runs}
    for kind in dict.fromkeys(kinds.values()):
        members = [run for run in runs if kinds[run] == kind]
        for start in range(0, len(members), most):
            min(parts, key=len).extend(members[start : start + most])
    return [part for part in parts if part]


def device(index: int, processes: int, several: bool = True) -> dict[str, str]:
    """What the environment of one of so many processes says about the GPU that it has, alone or with others.

    ``several``: whether more than one was asked for; so many are left.
    """
    count = torch.cuda.device_count()
    if count == 0:
        # Many threads on few cores wait for each other. Always one: with another number a run that goes on when fewer
        # processes are left would end with other bits.
        return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or "1"} if several else {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    sharing = len(range(index % count, processes, count))
    return {"CUDA_VISIBLE_DEVICES": names[index % count], GPU_PROCESSES: str(sharing)}
