"""Does the GPU wait for images? Training from JPEG folders beside the step alone, the decoder alone and other loaders.

    python benchmarks/loader.py --json results.json   # the paper's ImageNet recipe: timm ResNet-50, 224 px, batch 256
    python benchmarks/loader.py --stored 64 --size 64 --model timm/resnet18
    python benchmarks/loader.py --only step_alone     # one figure: here only to have the network compiled before

It makes its images from two real photographs (scikit-learn's), of ImageNet's sizes, about 89 kB each, in 1000 classes.
One network, compiled once, trains from every loader in turn: torchvision's ImageFolder in a DataLoader, timm's loader,
ours with the CPU's decoder and ours with the GPU's. A part that fails is named and costs the others nothing; figures
are written as they come. Other arguments are overrides of the recipe paper/imagenet.
"""

import argparse
import contextlib
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from engine_runs import Step, parser, training, write
from photograph_folder import make_images
from torch import Tensor

from timestepper.bench.timing import environment, wait_for
from timestepper.data import loader, open_dataset
from timestepper.data.folder import MEAN, STD
from timestepper.data.jpeg import baseline_size
from timestepper.data.on_gpu import cut_all, decoder
from timestepper.data.windows import View, Windows
from timestepper.engine.loop import Training
from timestepper.recipe.load import load
from timestepper.runs.start import widen_device_queue

# -- what is timed -----------------------------------------------------------------------------------------------------


def per_second(once: Callable[[], int], seconds: float, device: torch.device, warm_up: int = 3) -> float:
    """Images per second of a function that says how many it has made; it is called until the time is over."""
    for _ in range(warm_up):
        once()
    wait_for(device)
    images, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += once()
    wait_for(device)
    return images / (time.perf_counter() - start)


def decoders_alone(paths: list[str], options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """The decoder with all bytes in memory already, alone and with our kernel behind it."""
    contents = [pathlib.Path(path).read_bytes() for path in paths[: options.batch]]
    files = [torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents]
    windows = Windows(View(options.size, options.size, random_part=True, flip=True))
    shown = [windows.of(*(baseline_size(content) or (1, 1)), seed=1) for content in contents]
    out = torch.empty(len(files), options.size, options.size, 3, dtype=torch.uint8, device=device)
    decode = decoder(device)

    def decode_and_cut() -> int:
        images = decode(files)
        cut_all(images, shown, list(range(len(files))), out)
        wait_for(device)
        return len(files)

    alone = per_second(lambda: len(decode(files)), options.seconds / 2, device)
    return {"decoder": alone, "decoder_and_cut": per_second(decode_and_cut, options.seconds / 2, device)}


def pixel_difference(images: Any, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Between the two decoders, in levels of 256, over four batches of random parts."""
    pairs = zip(*(ours(images, options, device, decode).epoch(0) for decode in ("cpu", "gpu")), strict=True)
    spread = torch.tensor(STD, device=device)[:, None, None] * 255
    found = torch.cat([((cpu - gpu).abs() * spread).flatten() for (cpu, _), (gpu, _) in islice(pairs, 4)])
    return {"mean": found.mean().item(), "largest": found.max().item(), "within_1": (found < 1.5).float().mean().item()}


# -- the loaders -------------------------------------------------------------------------------------------------------


def ours(images: Any, options: argparse.Namespace, device: torch.device, decode: str) -> Any:
    return loader(
        images,
        batch_size=options.batch,
        seed=0,
        training=True,
        augment="resized_crop",
        device=device,
        workers=options.workers,
        decode=decode,
        memory_format=torch.channels_last,
    )


class Foreign:
    """Another library's loader, or a list of batches, as our engine asks for them."""

    def __init__(self, batches: Any, samples: int, device: torch.device):
        self.batches, self.steps, self.samples, self.device = batches, len(batches), samples, device

    def epoch(self, _epoch: int, _first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self.batches:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def torchvisions(root: pathlib.Path, options: argparse.Namespace, device: torch.device) -> Foreign:
    """As its training reference does it."""
    from torchvision.transforms import v2

    varied = (v2.RandomResizedCrop(options.size), v2.RandomHorizontalFlip(), v2.PILToTensor())
    scaled = (v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
    folder = repeated(root, options, v2.Compose([*varied, *scaled]))
    how = {"shuffle": True, "drop_last": True, "pin_memory": device.type == "cuda"}
    batches = torch.utils.data.DataLoader(folder, options.batch, num_workers=options.workers, **how)
    return Foreign(batches, len(folder), device)


def timms(root: pathlib.Path, options: argparse.Namespace, device: torch.device) -> Foreign:
    """Its prefetcher normalises on the GPU; random erasing and colours are off, as in the recipe."""
    from timm.data import create_loader

    folder = repeated(root, options)
    batches = create_loader(
        folder,
        input_size=(3, options.size, options.size),
        batch_size=options.batch,
        is_training=True,
        use_prefetcher=device.type == "cuda",
        interpolation="bilinear",
        color_jitter=None,
        mean=MEAN,
        std=STD,
        num_workers=options.workers,
        device=device,
        persistent_workers=False,
    )
    return Foreign(batches, len(folder), device)


def repeated(root: pathlib.Path, options: argparse.Namespace, transform: Callable | None = None) -> Any:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(str(root / "train"), transform)
    folder.samples = folder.samples * options.repeat
    return folder


# -- the step ----------------------------------------------------------------------------------------------------------


def one_again(batches: Any, device: torch.device) -> Foreign:
    """One batch of ours that is on the device already, again and again: the step alone."""
    return Foreign([next(batches.epoch(0))] * batches.steps, batches.samples, device)


def training_speed(run: Training, batches: Any, options: argparse.Namespace, warm_up: int) -> float:
    """Images per second of the engine's loop; enough updates first to use up what was loaded meanwhile."""
    run.train = batches
    step = Step(run)
    with contextlib.closing(step.steps):
        return per_second(lambda: step() or options.batch, options.seconds, run.runtime.device, warm_up)


def loading_speed(batches: Any, options: argparse.Namespace, device: torch.device) -> float:
    steps = iter(batches.epoch(0))
    return per_second(lambda: len(next(steps)[1]), options.seconds, device, warm_up=options.warm_up)


# -- all of it ---------------------------------------------------------------------------------------------------------


class Report:
    """Figures as they come; a part that fails is named, and the others go on."""

    def __init__(self, path: pathlib.Path | None, only: list[str] | None = None):
        self.path, self.only, self.figures = path, only, {}

    def part(self, name: str, measure: Callable[[], Any]) -> Any:
        if self.only and name not in self.only:
            return None
        start = time.perf_counter()
        try:
            self.figures[name] = answer = measure()
        except Exception as error:
            self.figures[name], answer = f"{type(error).__name__}: {str(error)[:500]}", None
        print(f"{name}: {self.figures[name]}  ({time.perf_counter() - start:.1f} s)", flush=True)
        write(self.path, self.figures)
        return answer


def measure(root: pathlib.Path, options: argparse.Namespace, report: Report) -> None:
    made = make_images(root, options.images, options.stored)
    report.part("images", lambda: made)
    device = torch.device(options.device)
    report.part("environment", lambda: environment(device) | {"processors": os.cpu_count()})
    data = open_dataset("folder", root, size=options.size)
    once = data.train
    many = replace(once, paths=once.paths * options.repeat, labels=once.labels.repeat(options.repeat))
    gpu = device.type == "cuda"
    alone = report.part("decoder_alone", lambda: decoders_alone(list(once.paths), options, device))
    if gpu:
        report.part("pixels_cpu_against_gpu", lambda: pixel_difference(once, options, device))
    makers: dict[str, Callable[[], Any]] = {"ours_gpu": lambda: ours(many, options, device, "gpu")} if gpu else {}
    makers |= {
        "ours_cpu": lambda: ours(many, options, device, "cpu"),
        "timm": lambda: timms(root, options, device),
        "torchvision": lambda: torchvisions(root, options, device),
    }
    for name, make in makers.items():
        report.part(f"{name}_alone", lambda make=make: loading_speed(make(), options, device))
    changes = [f"model.name={options.model}", f"data.batch_size={options.batch}", f"data.size={options.size}"]
    changes += [f"data.resize={round(options.size * 256 / 224)}", "data.name=folder", f"data.root={root}"]
    recipe = load("paper/imagenet", [*changes, *options.overrides])
    run = training(recipe, replace(data, train=many), device)
    step = report.part("step_alone", lambda: training_speed(run, one_again(makers["ours_cpu"](), device), options, 8))
    for name, make in makers.items():
        found = report.part(f"{name}_training", lambda make=make: training_speed(run, make(), options, options.warm_up))
        if name == "ours_gpu" and found and step and alone:
            report.part("of_the_smaller", lambda: report.figures["ours_gpu_training"] / min(step, alone["decoder"]))


def main() -> None:
    widen_device_queue([load("paper/imagenet")])  # as training does; before torch looks for a device
    asked = parser(__doc__)
    asked.add_argument("overrides", nargs="*", help="section.key=value of the recipe")
    asked.add_argument("--model", default="timm/resnet50", help="LIBRARY/MODEL")
    asked.add_argument("--batch", type=int, default=256, help="images of an update")
    asked.add_argument("--size", type=int, default=224, help="pixels of an input's side")
    asked.add_argument("--stored", type=int, help="pixels of a file's side; absent: ImageNet's sizes")
    asked.add_argument("--images", type=int, default=6000, help="files, at least 1000")
    asked.add_argument("--repeat", type=int, default=50, help="how often an epoch has each file: a long one")
    asked.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="of each loader")
    asked.add_argument("--seconds", type=float, default=5.0, help="of timing for each figure")
    asked.add_argument("--warm-up", type=int, default=30, help="batches before that: what was loaded ahead")
    asked.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="where")
    asked.add_argument("--only", action="append", metavar="FIGURE", help="this one, by its name; may be repeated")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(pathlib.Path(folder), options, Report(options.json, options.only))


if __name__ == "__main__":
    main()
