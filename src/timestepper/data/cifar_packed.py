"""CIFAR packed into lossless WebP atlases of 100 x 100 images, with the labels as .npy beside them."""

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from timestepper.data.sums import VerifiedFiles
from timestepper.errors import DataError

PER_ATLAS = 10_000


@dataclass(frozen=True)
class PackedCifar(VerifiedFiles):
    """`sums` are the sha256 of the files, which say which file is bad; `decoded` those of pixels and labels per half,
    which say that this machine's decoder gives the very images.
    """

    algorithm = "sha256"
    decoded: dict[str, tuple[str, str]]
    train: tuple[str, ...] = tuple(f"train_{part}.webp" for part in range(5))
    test: tuple[str, ...] = ("test_0.webp",)

    def read_half(self, folder: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (uint8 NHWC) and labels."""
        half = "train" if train else "test"
        atlases = [folder / name for name in (self.train if train else self.test)]
        labels = np.load(io.BytesIO(self.read_bytes(folder / f"{half}_labels.npy")), allow_pickle=False)
        contents = [self.read_bytes(path) for path in atlases]  # all verified before the slower decoding
        with ThreadPoolExecutor(2) as pool:
            pixels = np.concatenate(list(pool.map(decode_atlas, atlases, contents)))
        for what, values, expected in zip(("pixels", "labels"), (pixels, labels), self.decoded[half], strict=True):
            found = hashlib.sha256(values.data).hexdigest()
            if found != expected:
                raise DataError(
                    f"{folder}: {what} of {half}: decoded to sha256 {found}, expected {expected}; the decoder is not "
                    "lossless here"
                )
        return pixels, labels

    def read_names(self, folder: Path) -> tuple[str, ...]:
        return tuple(self.read_bytes(folder / "classes.txt").decode().splitlines())


def decode_atlas(path: Path, data: bytes) -> np.ndarray:
    try:
        atlas = np.asarray(Image.open(io.BytesIO(data), formats=("WEBP", "PNG")).convert("RGB"))
        return atlas.reshape(100, 32, 100, 32, 3).transpose(0, 2, 1, 3, 4).reshape(PER_ATLAS, 32, 32, 3)
    except Exception as error:
        raise DataError(f"{path}: not an atlas of 100 x 100 images of 32 x 32 ({error}); copy it again") from error


PACKED = {
    "cifar10": PackedCifar(
        folder="cifar10",
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
    "cifar100": PackedCifar(
        folder="cifar100",
        sums={
            "train_0.webp": "623a6c1c55118e4f7bf0e0981cf9ea0b16b4542cac47e1078a3dd53733cedb4f",
            "train_1.webp": "f5d5eecb0e00ebbdf29a10b9787afd92e2f06bffb8e02988153fa68f98d4821c",
            "train_2.webp": "888193cd16e451ac6c9004a9e56c46d72688203d37a4c552ffcbbbfd126546f0",
            "train_3.webp": "f7645804a49d12014199fd9001cf1c6cf6189701fd0f50547177a6f23ae60c7c",
            "train_4.webp": "3e1abbc8a47b5bb0e6f2dcdd1aac8c1896547f5834ede694341f7f8ed42e66b1",
            "test_0.webp": "239b7e8ea4957785b166973348d57bfcb94b27efa493adc2e20b622fff9def19",
            "train_labels.npy": "984c9a17074fad4164c6fa996e31042d93706ca06efa84e30add87a5c9d77774",
            "test_labels.npy": "ed7cc1c6c8083ddf4a09ec15b1185616778903ffcb9ee1361f21832dfbcaf114",
            "classes.txt": "4a53f81a8af29bb6aa646bfe2c455db1b061edfde82a39c0cfc313ef536c681b",
        },
        decoded={
            "train": (
                "2889317d8a656ef686c5d65ec13d71bc9fc6b61868584cabfe1c09941978cbff",
                "dc8d8e2df0bd4b642f8fd623dc1a36a1ca475798802a4a921283c7d0e1723cc7",
            ),
            "test": (
                "f0f824d76481543746369abfd62aac4e2bb76df42b0167afb6578e92cc2f7d9a",
                "b8900042666e182785d37f995a0f6a6b2f23583c18dd285179964b55b0d3dd94",
            ),
        },
    ),
}
