"""Data sets and the loaders that feed them to a training loop.

    dataset = open_dataset("cifar10")
    batches = loader(dataset.train, batch_size=64, seed=0, training=True, augment="crop_flip")
    for images, labels in batches.epoch(0): ...

Order and augmentation are functions of (seed, epoch, sample index): nothing is carried from one epoch to the next, so
any epoch can be started at any step, on any number of ranks and workers, and gives the same samples.
Names are imported on first use: processes that only decode images need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from timestepper.data.augment import AUGMENTS, Augment
    from timestepper.data.catalogue import DECODERS, NAMES, check, loader, open_dataset
    from timestepper.data.dataset import ArrayImages, Dataset, FolderImages
    from timestepper.data.loading import Loader

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
    if name in __all__:
        homes = (import_module(f"{__name__}.{home}") for home in ("augment", "catalogue", "dataset", "loading"))
        return next(getattr(home, name) for home in homes if hasattr(home, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
