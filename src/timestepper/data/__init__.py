"""Data sets and the loaders that feed them to a training loop.

    dataset = open_dataset("cifar10")
    batches = loader(dataset.train, batch_size=64, seed=0, training=True, augment="crop_flip")
    for images, labels in batches.epoch(0): ...

Order and augmentation are functions of (seed, epoch, sample index): nothing is carried from one epoch to the next, so
any epoch can be started at any step, on any number of ranks and workers, and gives the same samples.
Names are imported on first use, because torch is slow to import and a command line that prints its help needs none.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timestepper.data.augment import AUGMENTS, Augment
    from timestepper.data.catalogue import NAMES, check, open_dataset
    from timestepper.data.dataset import ArrayImages, Dataset, FolderImages
    from timestepper.data.loading import DECODERS, Loader, loader

_HOME = {
    "AUGMENTS": "augment",
    "Augment": "augment",
    "NAMES": "catalogue",
    "check": "catalogue",
    "open_dataset": "catalogue",
    "ArrayImages": "dataset",
    "Dataset": "dataset",
    "FolderImages": "dataset",
    "DECODERS": "loading",
    "Loader": "loading",
    "loader": "loading",
}

__all__ = [
    "AUGMENTS",
    "DECODERS",
    "NAMES",
    "ArrayImages",
    "Augment",
    "Dataset",
    "FolderImages",
    "Loader",
    "check",
    "loader",
    "open_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
