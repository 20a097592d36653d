"""What a data set is: a training half and a test half, held in memory as bytes or named by path."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from timestepper.errors import DataError

HOW_TO_GIVE_A_ROOT = "(data.root=FOLDER in a recipe, --root or --data-root where a command has it)"


@dataclass(frozen=True)
class ArrayImages:
    """Images that fit in memory: uint8, NHWC, with one label each."""

    images: Tensor
    labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise DataError(f"images must be uint8 of 4 dimensions, got {self.images.dtype} {tuple(self.images.shape)}")
        if self.images.shape[3] != len(self.mean) or len(self.mean) != len(self.std):
            raise DataError(
                f"images have {self.images.shape[3]} channels, but {len(self.mean)} means and {len(self.std)} "
                "standard deviations are given"
            )
        if self.labels.dtype != torch.int64:
            raise DataError(f"labels must be int64, got {self.labels.dtype}")
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images but {len(self.labels)} labels")
        check_labels(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.images)

    def to(self, device: torch.device | str) -> "ArrayImages":
        """The same images on another device; already there, the same memory, so several loaders share one copy."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def some(self, count: int) -> "ArrayImages":
        """The first `count` of them."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    @property
    def input_shape(self) -> tuple[int, int, int]:
        height, width, channels = self.images.shape[1:]
        return channels, height, width


@dataclass(frozen=True)
class FolderImages:
    """Image files that are decoded when needed, brought to `size` x `size` RGB."""

    paths: tuple[str, ...]
    labels: Tensor
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int = 224
    resize: int = 256
    """Shorter side before the centre crop of `size` at test time."""

    def __post_init__(self) -> None:
        if len(self.paths) != len(self.labels):
            raise DataError(f"{len(self.paths)} image files but {len(self.labels)} labels")
        if not 1 <= self.size <= self.resize:
            raise DataError(f"size {self.size} must be at least 1 and at most resize {self.resize}")
        check_labels(self.labels, self.classes)

    def __len__(self) -> int:
        return len(self.paths)

    def some(self, count: int) -> "FolderImages":
        """`count` of them, spread evenly over the folder, whose files are sorted by class."""
        count = min(count, len(self))
        places = [number * len(self) // count for number in range(count)]
        return replace(self, paths=tuple(self.paths[place] for place in places), labels=self.labels[places])

    @property
    def input_shape(self) -> tuple[int, int, int]:
        return 3, self.size, self.size


Images = ArrayImages | FolderImages


@dataclass(frozen=True)
class Dataset:
    """`sha256` stands for the content in its order, to be written into a record; of a folder for the names and sizes of
    its files, because reading millions of them at every start would take longer than it is worth.

    `facts`: what tells a folder from others wherever it lies, in numbers that a person understands; other sets are
    known by their names.
    """

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    sha256: str
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def mean(self) -> tuple[float, ...]:
        return self.train.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.train.std


def check_labels(labels: Tensor, classes: int) -> None:
    """A label outside the classes would be an index error deep inside a loss, on a GPU without its place."""
    if len(labels) == 0:
        return
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(f"labels run from {lowest} to {highest}, but {classes} classes allow only 0 to {classes - 1}")


def in_memory(
    name: str,
    halves: Iterable[tuple[np.ndarray, np.ndarray]],
    classes: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    """A data set of pixels (uint8, NHWC) and labels to train on and to test on; its sum is over both in this order."""
    total, made = hashlib.sha256(), []
    for pixels, labels in halves:
        labels = labels.astype(np.int64)
        total.update(pixels.data)
        total.update(labels.data)
        made.append(ArrayImages(torch.from_numpy(pixels), torch.from_numpy(labels), len(classes), mean, std))
    train, test = made
    return Dataset(name, train, test, classes, total.hexdigest())
