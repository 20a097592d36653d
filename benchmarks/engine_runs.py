"""Runs of the real engine on random images of CIFAR's shape, for the benchmarks beside this file."""

from dataclasses import replace

import torch

from timestepper.data import ArrayImages, Dataset
from timestepper.data.cifar import NORMALISATION
from timestepper.engine.distributed import Group
from timestepper.engine.journal import Journal
from timestepper.engine.loop import Training, TrainingPlan
from timestepper.recipe.schema import Recipe
from timestepper.runs import build


def random_data(train: int, test: int, device: torch.device) -> Dataset:
    """Bytes and labels that mean nothing: the time of a step does not depend on them."""
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
