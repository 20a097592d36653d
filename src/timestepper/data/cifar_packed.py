"""CIFAR packed into lossless WebP atlases of 100 x 100 images, with the labels as .npy beside them."""

import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from timestepper.data.sums import read_verified, verify_array
from timestepper.errors import DataError

PER_ATLAS = 10_000
_COPY = "copy the right files there"


@dataclass(frozen=True)
class PackedCifar:
    """`sums` are the sha256 of the files, which say which file is bad; `decoded` those of pixels and labels per half,
    which say that this machine's decoder gives the very images.

    Both are empty for a data set whose sums are not known yet; then sizes, label range and classes are all there is.
    """

    folder: str
    classes: int
    sums: dict[str, str] = field(default_factory=dict, repr=False)
    decoded: dict[str, tuple[str, str]] = field(default_factory=dict, repr=False)
    train: tuple[str, ...] = tuple(f"train_{part}.webp" for part in range(5))
    test: tuple[str, ...] = ("test_0.webp",)
    algorithm = "sha256"

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, *self.test, "train_labels.npy", "test_labels.npy", "classes.txt")

    def read_half(self, folder: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (uint8 NHWC) and labels."""
        half = "train" if train else "test"
        atlases = [folder / name for name in (self.train if train else self.test)]
        labels = self.read_labels(folder / f"{half}_labels.npy", len(atlases) * PER_ATLAS)
        contents = [self.read_bytes(path) for path in atlases]  # all verified before the slower decoding
        with ThreadPoolExecutor(2) as pool:
            pixels = np.concatenate(list(pool.map(decode_atlas, atlases, contents)))
        pixels_sum, labels_sum = self.decoded.get(half, (None, None))
        verify_array(f"{folder}: pixels of {half}", pixels.data, pixels_sum)
        verify_array(f"{folder}: labels of {half}", labels.data, labels_sum)
        return pixels, labels.astype(np.int64)

    def read_bytes(self, path: Path) -> bytes:
        return read_verified(path, self.sums.get(path.name), self.algorithm)

    def read_labels(self, path: Path, count: int) -> np.ndarray:
        data = self.read_bytes(path)
        try:
            labels = np.load(io.BytesIO(data), allow_pickle=False)
        except Exception as error:
            raise DataError(f"{path}: not a plain .npy array ({error}); copy it again") from error
        if labels.dtype != np.uint8 or labels.shape != (count,):
            raise DataError(f"{path}: {labels.dtype} {labels.shape}, expected uint8 ({count},); copy it again")
        if not np.array_equal(np.unique(labels), np.arange(self.classes)):
            raise DataError(
                f"{path}: {len(np.unique(labels))} different labels up to {labels.max()}, expected all of 0 to "
                f"{self.classes - 1}: this is not {self.folder}; {_COPY}"
            )
        return labels

    def read_names(self, folder: Path) -> tuple[str, ...]:
        path = folder / "classes.txt"
        names = tuple(self.read_bytes(path).decode("utf-8", errors="replace").splitlines())
        if len(set(names)) != self.classes:
            raise DataError(
                f"{path}: {len(set(names))} classes, expected {self.classes}: this is not {self.folder}; {_COPY}"
            )
        return names

    def test_file(self, path: Path) -> None:
        """Raise if the file is bad: by its sum, or by what it decodes to where no sum is known."""
        data = self.read_bytes(path)
        if path.name in self.sums:
            return
        if path.suffix == ".webp":
            decode_atlas(path, data)
        elif path.suffix == ".npy":
            self.read_labels(path, PER_ATLAS * len(self.train if path.name.startswith("train") else self.test))
        else:
            self.read_names(path.parent)


def decode_atlas(path: Path, data: bytes) -> np.ndarray:
    try:
        atlas = np.asarray(Image.open(io.BytesIO(data), formats=("WEBP", "PNG")).convert("RGB"))
        return atlas.reshape(100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(PER_ATLAS, 32, 32, 3)
    except Exception as error:
        raise DataError(f"{path}: not an atlas of 100 x 100 images of 32 x 32 ({error}); copy it again") from error


PACKED = {
    "cifar10": PackedCifar(
        folder="cifar10",
        classes=10,
        sums={
            "train_0.webp": "1f01c5ef17781e38912e977d671a5c1cc216e3a55018d1001c375b16fa673585",
            "train_1.webp": "e6e253c458186f0c42872deb0f2ab34250e4a4b5faa4d317e60edad2c9506b78",
            "train_2.webp": "9c5fda395ce014ef8c0bd5a576cc502617cfaae9cdb1b7d5560480ee89aa5415",
            "train_3.webp": "f2287eb3d12bd1ee2d0e5eb152a8e4c32ca34b7f274c4fe1c08e54b0fac76040",
            "train_4.webp": "5118518c4ab389bbb6df913a6d149bc5e410135f30cde4346d31454ba3b4e0b0",
            "test_0.webp": "a77e93480dbfeb07235ef8a1064c3f4cb55e24ed6aed88c48a170403a779e984",
            "train_labels.npy": "c83495997e09e6c1230ea1cecce98222f7601eac78185da81a40bddfaac7404d",
            "test_labels.npy": "9327a70944dc2458e55257f8a674d1b317d829cb05dcdbb47cd4ba10bc7083f8",
            "classes.txt": "bb3914949cecedee6d1257f7f5fdb8f43fa3b2c8095fd1763161caf1b873fe59",
        },
        decoded={
            "train": (
                "106c92bb46dac6d15868ac7399d1b36b84e074534af9bafd3ed8307e5d86a9f8",
                "b84471b23938f9b3871a6efb6808208c25a3cd746c8ff45de412b9f0d58eb502",
            ),
            "test": (
                "3af6e0e9748a77a01f2ccb7849e3c79d810942749cf58552efacf4ab34f3d248",
                "8d29100cf30e74baf457f58cd3e9cbcc76102d4b3f427d2baa4d6296a3a4c001",
            ),
        },
    ),
    "cifar100": PackedCifar(folder="cifar100", classes=100),
}
