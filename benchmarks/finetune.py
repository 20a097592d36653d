"""How far do step sizes alone carry a trained network to a new task? From CIFAR-100 to CIFAR-10, beside the usual ways.

    timestepper sweep paper/cifar100 controller.kind=none data.batch_size=128 run.epochs=40 --seeds 0-2 --out runs/base
    python benchmarks/finetune.py runs/base/* --json finetune.json

Each RUN is a plain network that our engine trained. It gets a new head, the linear discriminant of its features (closed
form, so that a head that is not trained is still one), and is tuned in each of the ways of WAYS, all with Adam, cosine
to zero, no weight decay. The last images of the training set are held out. On them the first network chooses each
way's learning rate, which the other networks then use; the test set is looked at once, at the end of a run.
RUNs that are still training are waited for. Several tunings share the GPU, in processes of their own. What the JSON
file holds already is kept, so that the work can be done in pieces.
"""

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import pathlib
import statistics
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
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
    train = whole.train
    held = replace(train, images=train.images[-held_out:], labels=train.labels[-held_out:])
    return tuple(part.first(limit or len(part)) for part in (train.first(len(train) - held_out), held, whole.test))


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


def warm(options: argparse.Namespace) -> None:
    """Import, read the data, compile the kernels: all that can be done before there is a network."""
    torch.set_num_threads(1)
    images(options.root, options.held_out, options.limit)
    device = choose_device("auto")
    if device.type == "cuda":
        runtime = Runtime(device, "bf16", channels_last=True, fast_convolutions=True)
        for kind in ("lstm", "independent"):
            net = runtime.place(timestepper.attach(create_model("cifar/resnet56"), kind))
            with runtime.autocast():
                x = torch.zeros(options.batch, 3, 32, 32, device=device)
                net(x.contiguous(memory_format=torch.channels_last)).float().sum().backward()
        torch.cuda.synchronize()


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


def wait_for(runs: list[pathlib.Path], before: list[dict]) -> list[dict]:
    """What the networks to tune are, with those of before; returns when all of them are trained."""
    while not all((run / "record.json").exists() for run in runs):
        time.sleep(0.2)
    records = [json.loads((run / "record.json").read_text()) for run in runs]
    keys = ("name", "seed", "recipe", "device", "commit", "versions", "wall_seconds", "data_sha256")
    found = [{key: record[key] for key in keys} | {"test": record["final"]["test"]} for record in records]
    return before + [base for base in found if base["seed"] not in {other["seed"] for other in before}]


def work(pool: ProcessPoolExecutor, options: argparse.Namespace, content: dict, deadline: float) -> None:
    """All tunings; a way's other networks begin as soon as its learning rate is chosen."""
    runs = {json.loads((run / "record.json").read_text())["seed"]: run for run in options.runs}
    first = min(base["seed"] for base in content["base"])
    waiting: dict[Future, Tuning] = {}

    def submit(*tasks: Tuning) -> None:
        waiting.update({pool.submit(tune, task, options): task for task in tasks})

    def others(way: str, lr: float) -> list[Tuning]:
        there = {(row["way"], row["seed"]) for row in content["results"]}
        return [Tuning(way, run, seed, lr) for seed, run in runs.items() if seed != first and (way, seed) not in there]

    for way in options.ways:
        chosen = content["chosen"].get(way)
        submit(*(others(way, chosen) if chosen else (Tuning(way, runs[first], first, lr) for lr in options.rates)))
    while waiting and time.time() < deadline:
        done, _ = wait(waiting, timeout=max(0, deadline - time.time()), return_when=FIRST_COMPLETED)
        for future in done:
            task = waiting.pop(future)
            error = future.exception()
            found = f"{task}: {type(error).__name__}: {error}" if error else future.result()
            content["failed" if error else "results"].append(found)
            print(json.dumps(found), flush=True)
            trials = [row for row in content["results"] if (row["way"], row["seed"]) == (task.way, first)]
            if task.seed == first and len(trials) == len(options.rates) and not error:
                lr = min(trials, key=lambda row: row["held_out"])["lr"]
                content["chosen"][task.way] = lr
                submit(*others(task.way, lr))
        write(options.json, content)
    content["unfinished"] = [f"{task.way}, seed {task.seed}, rate {task.lr:g}" for task in waiting.values()]


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
    asked.add_argument("--seconds", type=float, default=1e6, help="end after so long, finished or not")
    asked.add_argument("--limit", type=int, help="images of each part, to try this script out")
    options = asked.parse_args()
    began = time.time()
    pool = ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn"))
    errors = [ready.exception() for ready in [pool.submit(warm, options) for _ in range(options.jobs)]]
    print(f"ready after {time.time() - began:.0f} s", *filter(None, errors), flush=True)
    told = vars(options) | {"runs": [str(run) for run in options.runs], "json": None}
    content: dict = {"base": [], "chosen": {}, "results": [], "failed": []}
    if options.json and options.json.exists():
        content |= json.loads(options.json.read_text())
    content |= {"environment": environment(choose_device("auto"), options.commit), "options": told}
    content["base"] = wait_for(options.runs, content["base"])
    print(f"networks trained after {time.time() - began:.0f} s", flush=True)
    work(pool, options, content, began + options.seconds)
    content["table"] = table(content["results"], content["chosen"]).splitlines()
    content["seconds"] = round(time.time() - began, 1)
    write(options.json, content)
    print("\n".join(content["table"]), *content["unfinished"], sep="\n", flush=True)
    for process in multiprocessing.active_children():  # what is unfinished is told of
        process.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
