"""What the scripts beside this file share: the checkout's source, their common options, their report, short runs."""

import argparse
import json
import pathlib
import sys
from dataclasses import replace
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))

import torch

from timestepper.data import ArrayImages, Dataset
from timestepper.data.cifar import NORMALISATION
from timestepper.engine.distributed import Group
from timestepper.engine.journal import Journal
from timestepper.engine.loop import Training, TrainingPlan
from timestepper.files import make_folder, write_atomic
from timestepper.recipe.schema import Recipe
from timestepper.runs import build


def parser(description: str | None) -> argparse.ArgumentParser:
    """With the options that all scripts have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=pathlib.Path, help="write all figures here, as they come")
    return made


def write(path: pathlib.Path | None, figures: dict[str, Any]) -> None:
    if path:
        make_folder(path.parent)
        write_atomic(path, (json.dumps(figures, indent=1) + "\n").encode())


def random_data(train: int, test: int, device: torch.device) -> Dataset:
    """Images of CIFAR's shape and labels that mean nothing: the time of a step does not depend on them."""
    source = torch.Generator().manual_seed(0)

    def half(count: int) -> ArrayImages:
        images = torch.randint(256, (count, 32, 32, 3), generator=source, dtype=torch.uint8)
        labels = torch.randint(10, (count,), generator=source)
        return ArrayImages(images, labels, 10, *NORMALISATION["cifar10"]).to(device)

    return Dataset("random", half(train), half(test), tuple(map(str, range(10))), "random")


def training(recipe: Recipe, data: Dataset, device: torch.device) -> Training:
    """The loop that ``timestepper train`` runs, without evaluation and files."""
    runtime, group = build.runtime(recipe, device, print), Group(device=device)
    model = runtime.place(build.network(recipe, data.train))
    batches = build.train_loader(recipe, data.train, runtime, group)
    return Training(
        model,
        build.optimiser(recipe, model),
        build.schedule(replace(recipe, run=replace(recipe.run, epochs=10**6)), batches.steps),
        batches,
        None,
        plan=TrainingPlan(seed=recipe.run.seed, checkpoint_epochs=0),
        runtime=runtime,
        journal=Journal(),
        group=group,
    )


class Step:
    """Called, it makes one update of a run."""

    def __init__(self, run: Training):
        self.run, self.steps = run, run.steps()

    def __call__(self) -> None:
        before = self.run.step
        while self.run.step == before:
            next(self.steps)
