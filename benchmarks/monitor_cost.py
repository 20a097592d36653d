"""What does the stability monitor cost? Time of one look as a share of an epoch's, beside the same epoch without it.

    python benchmarks/monitor_cost.py cifar/resnet20:64 cifar/resnet56:64 --mode compiled+graph

A case is MODEL:BATCH; an epoch is 50,000 images of CIFAR size, trained as the engine trains. The first look, which
also walks the network, is shown apart: it comes once. The aim is a share of at most 2 %.
"""

import argparse
import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

import timestepper  # noqa: E402
from timestepper.adapters import create_model  # noqa: E402
from timestepper.bench.environment import environment  # noqa: E402
from timestepper.bench.timing import seconds  # noqa: E402
from timestepper.bench.training import MODES, Case, TrainingStep, forget, runtime  # noqa: E402
from timestepper.stability.monitor import Monitor  # noqa: E402

IMAGES = 50_000


def measure(model: str, batch: int, options: argparse.Namespace, device: torch.device) -> dict:
    torch.manual_seed(0)
    net = timestepper.attach(create_model(model), "lstm")
    shape = (3, options.input_size, options.input_size)
    case = Case(batch, shape, 10, runtime(options.mode, device, options.precision, channels_last=False))
    step = TrainingStep(net, case)
    steps = IMAGES // batch

    def some_steps() -> None:
        for _ in range(options.steps):
            step()

    monitor = Monitor(shape)
    looks = []
    per_step = statistics.median(seconds(some_steps, device) for _ in range(5)) / options.steps
    first = seconds(lambda: monitor.observe(net), device)
    for _ in range(options.looks):  # weights move between two looks, as in training
        some_steps()
        looks.append(seconds(lambda: monitor.observe(net), device))
    look, epoch = statistics.median(looks), per_step * steps
    return {
        "model": model,
        "batch": batch,
        "mode": options.mode,
        "epoch_seconds": epoch,
        "first_look_seconds": first,
        "look_seconds": look,
        "share": look / epoch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "cases", nargs="*", default=["cifar/resnet20:64", "cifar/resnet56:64", "cifar/resnet110:64"], help="MODEL:BATCH"
    )
    parser.add_argument("--mode", choices=MODES, default="compiled+graph", help="how an update is run")
    parser.add_argument("--precision", default="bf16", help="of the training")
    parser.add_argument("--input-size", type=int, default=32, help="edge of an image")
    parser.add_argument("--steps", type=int, default=50, help="training steps in one timing")
    parser.add_argument("--looks", type=int, default=9, help="of the monitor; their median counts")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {"environment": environment(device, options.commit), "cases": []}
    for text in options.cases:
        model, _, batch = text.partition(":")
        case = measure(model, int(batch or 64), options, device)
        found["cases"].append(case)
        print(
            f"{model:18s} batch {case['batch']:4d}  epoch {case['epoch_seconds']:8.2f} s  "
            f"look {1000 * case['look_seconds']:7.1f} ms  share {case['share']:.2%}  "
            f"(first look {case['first_look_seconds']:.2f} s)"
        )
        forget()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
