"""One of several processes that train together, case after case; run by test_engine_distributed.py."""

import os
import sys
from pathlib import Path

import torch
from tiny_training import network, training

from timestepper.engine import distributed
from timestepper.engine.loop import Interrupted
from timestepper.engine.signals import Signals

CASES = ("train", "signal", "evaluation", "norm", "parts")


def train(case, folder, group):
    """How the case ended on this rank."""
    signals = Signals()
    model = network(norm=case == "norm", dropout=0.0)
    folder = folder / case if group.rank == 0 else None
    run = training(
        folder, model=model, group=group, signals=signals, checkpoint_steps=2, accumulate=2 if case == "parts" else 1
    )
    asked_at = {"signal": 3, "evaluation": 5}.get(case)
    try:
        for step in run.steps():
            if group.rank == 1 and step == asked_at:
                signals.stop = 15
    except Interrupted as stop:
        return f"stopped by {stop.signal} at {stop.step}"
    return f"finished at {run.step}"


if __name__ == "__main__":
    group = distributed.start(torch.device("cpu"), 60)
    try:
        for case in CASES:
            with torch.profiler.profile() as profile:
                print(f"{case}: {train(case, Path(sys.argv[1]), group)}", flush=True)
            sums = sum(event.count for event in profile.key_averages() if event.key == "gloo:all_reduce")
            print(f"sums of {case}: {sums}", flush=True)
    finally:
        distributed.stop()
    sys.stdout.flush()
    os._exit(0)  # the threads of gloo outlive the group and can abort an interpreter that ends in its own way
