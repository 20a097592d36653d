"""How much faster than an eager loop is the engine? One update with all around it: data, checks, optimiser, report.

    python benchmarks/training_step.py --batches 64 128 --controllers none lstm runtime.precision=bf16

The loops of ``timestepper train`` are timed in turn: eager, the same kernels in a CUDA graph, compiled in a CUDA graph.
With --looks also the stability monitor, which looks at the network once an epoch: its share of an epoch of 50,000
images (aim: at most 2 %), and the first look, which comes once. Other arguments are overrides of the recipe
paper/cifar10. ``timestepper bench`` says how far a step is from the floor.
"""

import argparse
import json
import statistics

import torch
from engine_runs import Step, parser, random_data, training, write

from timestepper.bench.timing import environment, interleaved, seconds
from timestepper.recipe.load import load
from timestepper.stability import Monitor

MODES = {
    "eager": ["runtime.compile=false", "runtime.cuda_graph=false"],
    "graph": ["runtime.compile=false", "runtime.cuda_graph=true"],
    "compiled+graph": ["runtime.compile=true", "runtime.cuda_graph=true"],
}
WARM_UP = 8  # updates: compiling, choosing kernels, recording
BETWEEN = 50  # updates from look to look: weights move, as in training


def measure(batch: int, controller: str, options: argparse.Namespace, device: torch.device) -> dict:
    """All modes of one network and batch."""
    data = random_data(50_000, 10_000, device)
    common = [f"data.batch_size={batch}", f"controller.kind={controller}", f"model.name={options.model}"]
    steps: dict[str, Step] = {}
    first: dict[str, float] = {}
    for mode in options.modes:
        recipe = load("paper/cifar10", [*common, *MODES[mode], *options.overrides])
        step = steps[mode] = Step(training(recipe, data, device))
        first[mode] = seconds(lambda step=step: [step() for _ in range(WARM_UP)], device)
        print(f"  {mode}: ready after {first[mode]:.1f} s", flush=True)
    timings = interleaved(steps, device, rounds=options.rounds, seconds=options.seconds)
    eager = timings[options.modes[0]].ms.median
    result = {"model": options.model, "controller": controller, "batch": batch, "modes": {}}
    print(f"{options.model} {controller} batch {batch}, {recipe.runtime.precision}")
    for mode, (ms, _) in timings.items():
        entry = {"ms": ms.median, "quartiles": [ms.low, ms.high], "speedup": eager / ms.median}
        result["modes"][mode] = entry | {"first_steps_s": first[mode]}
        print(
            f"  {mode:15s} {ms.median:8.3f} ms [{ms.low:.3f}, {ms.high:.3f}]  {eager / ms.median:5.2f} times "
            f"{options.modes[0]}  {1000 * batch / ms.median:9,.0f} im/s",
            flush=True,
        )
    if options.looks:
        epoch = ms.median / 1000 * 50_000 / batch  # in the last mode
        result["monitor"] = look_on(step, epoch, options.looks, device)
    return result


def look_on(step: Step, epoch: float, looks: int, device: torch.device) -> dict[str, float]:
    """Seconds of the monitor's looks at a network that trains."""
    monitor, times = Monitor((3, 32, 32)), []
    for _ in range(looks + 1):
        times.append(seconds(lambda: monitor.observe(step.run.model), device))
        for _ in range(BETWEEN):
            step()
    first, look = times[0], statistics.median(times[1:])
    print(f"  monitor: a look {1000 * look:.1f} ms, {look / epoch:.2%} of an epoch; the first {first:.2f} s")
    return {"epoch_seconds": epoch, "first_look_seconds": first, "look_seconds": look, "share": look / epoch}


def main() -> None:
    found = parser(__doc__)
    found.add_argument("overrides", nargs="*", help="section.key=value of the recipe")
    found.add_argument("--model", default="cifar/resnet56", help="LIBRARY/MODEL")
    found.add_argument("--batches", nargs="+", type=int, default=[64, 128], help="images of an update")
    found.add_argument("--controllers", nargs="+", default=["none", "lstm"], help="none: plain")
    found.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="how an update is run")
    found.add_argument("--looks", type=int, default=0, help="of the monitor, in the last mode; their median counts")
    found.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="where")
    found.add_argument("--rounds", type=int, default=9, help="of all variants; medians count")
    found.add_argument("--seconds", type=float, default=9.0, help="of timing for each network and batch")
    options = found.parse_args()
    device = torch.device(options.device)
    report: dict = {"environment": environment(device), "overrides": options.overrides, "cases": []}
    print(json.dumps(report["environment"]))
    for batch in options.batches:
        for controller in options.controllers:
            report["cases"].append(measure(batch, controller, options, device))
            write(options.json, report)


if __name__ == "__main__":
    main()
