"""How much faster than an eager loop is the engine? One update with all around it: data, checks, optimiser, report.

    python benchmarks/training_step.py --batches 64 128 --controllers none lstm runtime.precision=bf16

The loops of ``timestepper train`` are timed in turn: eager, the same kernels in a CUDA graph, compiled in a CUDA graph.
Other arguments are overrides of the recipe paper/cifar10. ``timestepper bench`` says how far a step is from the floor.
"""

import argparse
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch
from engine_runs import random_data, training

from timestepper.bench.environment import environment
from timestepper.bench.timing import interleaved
from timestepper.engine.loop import Training
from timestepper.recipe.load import load

MODES = {
    "eager": ["runtime.compile=false", "runtime.cuda_graph=false"],
    "graph": ["runtime.compile=false", "runtime.cuda_graph=true"],
    "compiled+graph": ["runtime.compile=true", "runtime.cuda_graph=true"],
}
WARM_UP = 8  # updates: compiling, choosing kernels, recording


class Step:
    """Called, it makes one update. Making it compiles and records."""

    def __init__(self, run: Training):
        self.run = run
        self._steps = run.steps()
        start = time.perf_counter()
        for _ in range(WARM_UP):
            self()
        self.seconds = time.perf_counter() - start

    def __call__(self) -> None:
        before = self.run.step
        while self.run.step == before:
            next(self._steps)


def measure(batch: int, controller: str, options: argparse.Namespace, device: torch.device) -> dict:
    """All modes of one network and batch."""
    data = random_data(50_000, 10_000, device)
    common = [f"data.batch_size={batch}", f"controller.kind={controller}", f"model.name={options.model}"]
    steps: dict[str, Step] = {}
    for mode in options.modes:
        recipe = load("paper/cifar10", [*common, *MODES[mode], *options.overrides])
        steps[mode] = Step(training(recipe, data, device))
        print(f"  {mode}: ready after {steps[mode].seconds:.1f} s", flush=True)
    timings = interleaved(steps, device, rounds=options.rounds, seconds=options.seconds)
    eager = timings[options.modes[0]].ms.median
    result = {"model": options.model, "controller": controller, "batch": batch, "modes": {}}
    print(f"{options.model} {controller} batch {batch}, {recipe.runtime.precision}")
    for mode, timing in timings.items():
        ms = timing.ms
        entry = {"ms": ms.median, "quartiles": [ms.low, ms.high], "speedup": eager / ms.median}
        result["modes"][mode] = entry | {"first_steps_s": steps[mode].seconds}
        print(
            f"  {mode:15s} {ms.median:8.3f} ms [{ms.low:.3f}, {ms.high:.3f}]  {eager / ms.median:5.2f} times "
            f"{options.modes[0]}  {1000 * batch / ms.median:9,.0f} im/s",
            flush=True,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="section.key=value of the recipe")
    parser.add_argument("--model", default="cifar/resnet56", help="LIBRARY/MODEL")
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 128], help="images of an update")
    parser.add_argument("--controllers", nargs="+", default=["none", "lstm"], help="none: plain")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="how an update is run")
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="where")
    parser.add_argument("--rounds", type=int, default=9, help="of all variants; medians count")
    parser.add_argument("--seconds", type=float, default=9.0, help="of timing for each network and batch")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="also write the figures here")
    options = parser.parse_args()
    device = torch.device(options.device)
    report: dict = {"environment": environment(device, options.commit), "overrides": options.overrides, "cases": []}
    print(json.dumps(report["environment"]))
    for batch in options.batches:
        for controller in options.controllers:
            report["cases"].append(measure(batch, controller, options, device))
            if options.json:
                options.json.parent.mkdir(parents=True, exist_ok=True)
                options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
