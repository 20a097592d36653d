"""What does a sweep gain over one run after another on one GPU, and is each run still the run alone?

    python benchmarks/sweep.py --together 6 3

Runs of paper/cifar10 (plain and lstm in turn, each with its own seed) on random images. First each begins alone, until
its graphs of training and evaluation are recorded: that costs the same either way and is not timed. Then the epochs
that follow are timed, for one run after another and for all together, with evaluation as in any run. A last epoch ends
the runs; it is not timed either.
At the end the weights and metrics of both are compared, bit by bit. Other arguments are overrides of the recipe.
"""

import argparse
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch
from engine_runs import random_data
from safetensors.torch import load_file

from timestepper.bench.environment import environment
from timestepper.cli.sweep import widen_device_queue
from timestepper.data import Dataset
from timestepper.engine.runtime import choose_device
from timestepper.engine.signals import Signals
from timestepper.runs.run import FAILED, Run
from timestepper.runs.train import Process
from timestepper.sweeps.ahead import Ahead
from timestepper.sweeps.display import Board
from timestepper.sweeps.one_gpu import Shared, take, take_turns
from timestepper.sweeps.plan import expand


class Given(Shared):
    """The random images, whatever the recipe asks for."""

    def __init__(self, data: Dataset):
        super().__init__()
        self._data = data

    def dataset(self, *_: object) -> Dataset:
        return self._data


class Quiet(Board):
    """Shows nothing but failures."""

    def tell(self, line: str) -> None:
        if "failed" in line or "no CUDA graph" in line or "not compiled" in line:
            super().tell(line)


Turns = Iterator[Process]


def until(run: Run, turns: Turns, epochs: int) -> Turns:
    """The turns of a run up to the end of so many epochs."""
    for process in turns:
        if process.training is not None and process.training.epochs_done >= epochs:
            return
        yield process
    if run.state == FAILED:
        raise SystemExit(f"{run.label}: {run.message}")


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def go(turns: dict[Run, Turns], epochs: int, jobs: int) -> float:
    """Seconds until all have done so many epochs."""
    synchronize()
    start = time.perf_counter()
    parts = {run: until(run, steps, epochs) for run, steps in turns.items()}
    take_turns(parts, Signals(), jobs, Ahead([]))  # nothing to compile
    synchronize()
    return time.perf_counter() - start


def timed(runs: list[Run], shared: Shared, jobs: int, options: argparse.Namespace) -> list[float]:
    """Seconds of the timed part: one number for all together, or one for each run with ``jobs=1``."""
    turns = {run: take(run, Quiet(plain=True).add(run), shared) for run in runs}
    each = [{run: steps} for run, steps in turns.items()]
    for one in each:
        go(one, options.warm_epochs, 1)
    seconds = [go(part, options.epochs, jobs) for part in ([turns] if jobs > 1 else each)]
    for steps in turns.values():
        for _ in steps:
            pass
    return seconds


def epoch_seconds(run: Run) -> list[float]:
    """How long each epoch of a run took, by its own notes: shows whether the timed ones are alike."""
    lines = (run.path / "timing.jsonl").read_text().splitlines()
    return [round(json.loads(line)["seconds"], 3) for line in lines]


def differences(first: list[Run], second: list[Run]) -> Iterator[dict]:
    """What differs between the ends of the same runs."""
    for one, other in zip(first, second, strict=True):
        a, b = load_file(one.path / "weights.safetensors"), load_file(other.path / "weights.safetensors")
        equal = all(torch.equal(a[name], b[name]) for name in a)
        metrics = [(entry.path / "metrics.jsonl").read_bytes() for entry in (one, other)]
        finals = [json.loads((entry.path / "record.json").read_text())["final"] for entry in (one, other)]
        yield {
            "run": one.label,
            "weights_equal": equal,
            "metrics_equal": metrics[0] == metrics[1],
            "train_loss": [final["train"]["loss"] for final in finals],
            "epoch_s": [epoch_seconds(one), epoch_seconds(other)],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="section.key=value of the recipe")
    parser.add_argument("--together", nargs="+", type=int, default=[6, 3], help="numbers of runs")
    parser.add_argument("--controllers", nargs="+", default=["none", "lstm"], help="kinds that the runs take in turn")
    parser.add_argument("--batch", type=int, default=64, help="images in a batch")
    parser.add_argument("--images", type=int, default=25_600, help="of an epoch; a fifth as many are evaluated")
    parser.add_argument("--warm-epochs", type=int, default=1, help="epochs of each run alone before the timed ones")
    parser.add_argument("--epochs", type=int, default=4, help="the warm ones included")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures here")
    options = parser.parse_args()
    widen_device_queue(max(options.together))
    device = choose_device("auto")
    shared = Given(random_data(options.images, options.images // 5, device))
    report: dict = {"environment": environment(device, options.commit), "options": vars(options) | {"json": None}}
    print(json.dumps(report["environment"]))
    # One epoch more than is timed: a run's last turn also saves, evaluates afresh and exports, one run after another.
    common = [f"data.batch_size={options.batch}", f"run.epochs={options.epochs + 1}", "run.tensorboard=false"]
    most = max(options.together)
    with tempfile.TemporaryDirectory() as folder:

        def entries(name: str) -> list[Run]:
            found = []
            for seed in range(most):
                kind = options.controllers[seed % len(options.controllers)]
                overrides = [*common, f"controller.kind={kind}", *options.overrides]
                found += expand(["paper/cifar10"], overrides, [seed], pathlib.Path(folder) / name, 120.0)
            return found

        begun = time.perf_counter()
        alone = entries("alone")
        each = timed(alone, shared, 1, options)
        print(f"alone: {' '.join(f'{s:.2f}' for s in each)} s ({time.perf_counter() - begun:.0f} s with compiling)")
        report |= {"alone_s": each, "together": {}}
        for count in options.together:
            together = entries(f"together-{count}")[:count]
            (seconds,) = timed(together, shared, count, options)
            found = list(differences(alone[:count], together))
            gain = sum(each[:count]) / seconds
            equal = sum(entry["weights_equal"] and entry["metrics_equal"] for entry in found)
            report["together"][count] = {"seconds": seconds, "speedup": gain, "bit_equal": equal, "runs": found}
            print(
                f"{count} together: {seconds:.2f} s, {gain:.2f} times faster; {equal} of {count} bit-equal", flush=True
            )
            for entry in found:
                print(f"  {entry['run']}: train loss alone {entry['train_loss'][0]!r}, here {entry['train_loss'][1]!r}")
                print(f"    seconds of its epochs alone {entry['epoch_s'][0]}, here {entry['epoch_s'][1]}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
