"""How far do step sizes alone carry a trained network to a new task? From CIFAR-100 to CIFAR-10, beside the usual ways.

    timestepper sweep paper/cifar100 data.root=DATA controller.kind=none data.batch_size=128 run.epochs=40 --seeds 0-2
    python benchmarks/finetune.py runs/paper/cifar100/*/seed? --root DATA --json finetune.json

Each RUN is a plain network that our engine trained. It gets a new head, the linear discriminant of its features (closed
form, so that a head that is not trained is still one), and is tuned in each of the ways of WAYS, all with Adam, cosine
to zero, no weight decay. The last images of the training set are held out. On them the first network chooses each
way's learning rate, which the other networks then use; the test set is looked at once, at the end of a run.
With --jobs several tunings share the GPU, in processes of their own. What the JSON file holds already is kept, so that
the work can be done in pieces.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import pathlib
import statistics
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import NamedTuple

import torch
from engine_runs import parser, write
from safetensors.torch import load_file
from torch import nn

import timestepper
from timestepper import data
from timestepper.adapters import create_model
from timestepper.bench.timing import environment
from timestepper.engine.distributed import Group
from timestepper.engine.evaluation import Evaluation
from timestepper.engine.optimiser import set_rate
from timestepper.engine.runtime import Runtime, choose_device
from timestepper.engine.schedule import Schedule
from timestepper.engine.step import UpdateStep


class Trained(NamedTuple):
    """What is trained. Batch norms take on the new images' statistics, before and while it trains, unless ``still``."""

    controller: str = ""  # none: nothing is attached
    base: str = ""  # of the network: all, norms, or nothing
    head: bool = True
    still: bool = False


WAYS = {
    "everything": Trained("lstm", "all"),
    "step sizes": Trained("lstm", head=False),
    "step sizes and head": Trained("lstm"),
    "batch norms and head": Trained(base="norms"),
    "head": Trained(still=True),
    "head, statistics follow": Trained(),
    "step sizes (independent) and head": Trained("independent"),
}
SEEN = 40  # batches of 500 that batch norms see before the head is made: their momentum forgets all but the last ten


class Tuning(NamedTuple):
    """One network in one way."""

    way: str
    run: pathlib.Path
    seed: int
    lr: float


@functools.cache
def images(root: str | None, held_out: int, limit: int | None) -> tuple[data.ArrayImages, ...]:
    """Training, held-out and test images, all of CIFAR-10; ``limit`` is for trying this script out."""
    whole = data.open_dataset("cifar10", root)
    pixels, labels = whole.train.images, whole.train.labels
    train = replace(whole.train, images=pixels[:-held_out], labels=labels[:-held_out])
    held = replace(whole.train, images=pixels[-held_out:], labels=labels[-held_out:])
    return tuple(part.some(limit or len(part)) for part in (train, held, whole.test))


@torch.no_grad()
def discriminant(net: nn.Module, loader: data.Loader, classes: int) -> nn.Linear:
    """The linear discriminant of the network's features: equal priors, one covariance, shrunk by a thousandth."""
    net.eval().linear = nn.Identity()
    pairs = [(net(x).double(), y) for x, y in loader.epoch(0)]
    features, labels = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    features, labels = features[labels >= 0], labels[labels >= 0]
    means = torch.stack([features[labels == c].mean(0) for c in range(classes)])
    covariance = (features - means[labels]).T.cov()
    covariance += 1e-3 * covariance.trace() / len(covariance) * torch.eye(len(covariance), device=features.device)
    weight = torch.linalg.solve(covariance, means.T).T
    head = nn.Linear(*reversed(weight.shape), device=weight.device)
    head.weight.copy_(weight)
    head.bias.copy_(-(weight * means).sum(1) / 2)
    return head


def prepared(task: Tuning, loader: data.Loader, classes: int, device: torch.device) -> nn.Module:
    """The trained network with its new head, attached where the way says so; only what it trains has gradients."""
    way, record = WAYS[task.way], json.loads((task.run / "record.json").read_text())
    weights = load_file(task.run / "weights.safetensors")
    net = create_model(record["recipe"]["model"]["name"], num_classes=len(weights["linear.bias"]))
    net.load_state_dict(weights)
    net.to(device).train(not way.still)
    with torch.no_grad():
        for x, _ in itertools.islice(loader.epoch(0), SEEN):
            net(x)
    net.linear = discriminant(net, loader, classes)
    torch.manual_seed(task.seed)
    if way.controller:
        timestepper.attach(net, way.controller, start="identity").to(device)
        timestepper.freeze_base(net)
    else:
        net.requires_grad_(False)
    for part in net.modules():
        if way.base == "all" or (way.base == "norms" and isinstance(part, nn.BatchNorm2d)):
            part.requires_grad_()
    net.linear.requires_grad_(way.head)
    return net.train(not way.still)


def tune(task: Tuning, options: argparse.Namespace) -> dict:
    """Tune one network in one way; what came out."""
    began, device = time.perf_counter(), choose_device("auto")
    gpu = device.type == "cuda"
    runtime = Runtime(device, "bf16" if gpu else "float32", cuda_graph=gpu, channels_last=gpu, fast_convolutions=gpu)
    runtime.configure()
    group, quiet = Group(device=device), torch.zeros(2, device=device)
    layout = torch.channels_last if gpu else torch.contiguous_format
    train, held, test = images(options.root, options.held_out, options.limit)

    def loader(part: data.ArrayImages, **kind: object) -> data.Loader:
        return data.loader(part, seed=task.seed, device=device, memory_format=layout, **kind)

    held_batches, test_batches = (loader(part, batch_size=500, training=False) for part in (held, test))
    net = prepared(task, loader(train, batch_size=500, training=False), train.classes, device)
    runtime.place(net)
    plainly = replace(runtime, cuda_graph=False)
    evaluation = Evaluation(net, plainly, group)
    before = evaluation.run(test_batches)["error"]
    trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
    rate = torch.tensor(task.lr, device=device)
    described = [{"params": trained, "lr": rate}]
    optimiser = torch.optim.Adam(described, lr=rate, fused=True, capturable=gpu)
    batches = loader(train, batch_size=options.batch, training=True, augment="crop_flip")
    schedule = Schedule(lr=task.lr, epochs=options.epochs, steps_per_epoch=batches.steps, law="cosine")
    update = runtime.graphed(UpdateStep(net, net, optimiser, runtime, group))
    for epoch in range(options.epochs):
        for number, (x, y) in enumerate(batches.epoch(epoch), epoch * batches.steps):
            set_rate(optimiser, schedule.rate(number))
            rows = update(x, y, quiet)
    if rows[0, 0]:
        raise FloatingPointError(f"{task}: a loss or gradient is not finite")
    found = {
        "way": task.way,
        "seed": task.seed,
        "lr": task.lr,
        "trained": sum(parameter.numel() for parameter in trained),
        "before": before,
        "held_out": evaluation.run(held_batches)["error"],
        "test": evaluation.run(test_batches)["error"],
    }
    if timestepper.is_attached(net):
        found |= folded(net, plainly, test_batches)
    return found | {"seconds": round(time.perf_counter() - began, 1)}


@torch.no_grad()
def folded(net: nn.Module, runtime: Runtime, batches: data.Loader) -> dict:
    """The folded network beside the attached one: its test error, and the largest difference of logits in float32."""
    plain = timestepper.fold(net.eval())
    pairs = [(net(x), plain(x)) for x, _ in batches.epoch(0)]
    steps = torch.cat([dt.flatten() for dt in timestepper.step_sizes(net).values()])
    return {
        "folded": Evaluation(plain, runtime, Group(device=runtime.device)).run(batches)["error"],
        "fold_difference": max((a - b).abs().max().item() for a, b in pairs),
        "dt": [round(q.item(), 4) for q in steps.quantile(steps.new_tensor([0, 0.25, 0.5, 0.75, 1]))],
    }


def table(results: list[dict], chosen: dict[str, float]) -> str:
    """Markdown: mean and deviation of the test error over the networks, at each way's learning rate."""
    lines = ["| trained | parameters | rate | test error | folded |", "| --- | --- | --- | --- | --- |"]
    for way, lr in chosen.items():
        rows = [row for row in results if (row["way"], row["lr"]) == (way, lr)]
        errors = [100 * row["test"] for row in rows]
        equal = f"differs by {max(row['fold_difference'] for row in rows):.0e}" if "folded" in rows[0] else ""
        deviation = statistics.stdev(errors) if len(errors) > 1 else 0
        shown = f"{statistics.mean(errors):.2f} ± {deviation:.2f} % ({len(rows)})"
        lines.append(f"| {way} | {rows[0]['trained']:,} | {lr:g} | {shown} | {equal} |")
    return "\n".join(lines)


def trained(run: pathlib.Path) -> dict:
    """What is to be known of a network that is tuned."""
    record = json.loads((run / "record.json").read_text())
    keys = ("name", "seed", "recipe", "device", "commit", "versions", "wall_seconds", "data_sha256")
    return {key: record[key] for key in keys} | {"test": record["final"]["test"]}


def tune_all(tasks: Iterable[Tuning], options: argparse.Namespace, content: dict) -> None:
    """What is not there yet, so many at a time; all is written as it comes, and one that fails stops no other."""
    there = {(row["way"], row["seed"], row["lr"]) for row in content["results"]}
    left = [task for task in tasks if (task.way, task.seed, task.lr) not in there]
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(tune, task, options): task for task in left}
        for done in as_completed(running):
            if error := done.exception():
                print(f"{running[done]}: {type(error).__name__}: {error}", flush=True)
                continue
            content["results"].append(done.result())
            print(json.dumps(done.result()), flush=True)
            write(options.json, content)


def main() -> None:
    asked = parser(__doc__)
    asked.add_argument("runs", nargs="+", type=pathlib.Path, help="run directories of plain networks, one per seed")
    asked.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what is trained")
    asked.add_argument("--rates", nargs="+", type=float, default=[1e-3, 1e-2], help="learning rates to choose from")
    asked.add_argument("--epochs", type=int, default=8, help="of each tuning")
    asked.add_argument("--batch", type=int, default=128, help="images in a batch")
    asked.add_argument("--held-out", type=int, default=5000, help="training images that only choose the rate")
    asked.add_argument("--root", help="folder of the data; by default the usual places")
    asked.add_argument("--jobs", type=int, default=1, help="tunings at once")
    asked.add_argument("--limit", type=int, help="images of each part, to try this script out")
    options = asked.parse_args()
    content: dict = {"chosen": {}, "results": []}
    if options.json and options.json.exists():
        content |= json.loads(options.json.read_text())
    base = [trained(run) for run in options.runs]
    runs = {known["seed"]: run for known, run in zip(base, options.runs, strict=True)}
    first, *others = sorted(runs)
    told = vars(options) | {"runs": [str(run) for run in options.runs], "json": None}
    content |= {"environment": environment(choose_device("auto")), "options": told, "base": base}
    rates = itertools.product(options.ways, options.rates)
    tune_all((Tuning(way, runs[first], first, lr) for way, lr in rates), options, content)
    for way in options.ways:
        trials = [row for row in content["results"] if (row["way"], row["seed"]) == (way, first)]
        if trials:
            content["chosen"][way] = min(trials, key=lambda row: row["held_out"])["lr"]
    chosen = [(way, lr) for way, lr in content["chosen"].items() if way in options.ways]
    tune_all((Tuning(way, runs[seed], seed, lr) for seed in others for way, lr in chosen), options, content)
    content["table"] = table(content["results"], content["chosen"]).splitlines()
    write(options.json, content)
    print("\n".join(content["table"]), flush=True)


if __name__ == "__main__":
    main()
