"""CIFAR as its authors distribute it: Python 2 pickles, here read by a reader that can make nothing but byte arrays."""

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timestepper.data.sums import VerifiedFiles
from timestepper.errors import DataError

_ADVICE = "use the original CIFAR files"


class ByteType:
    """Stands in for numpy.dtype, and knows one type: unsigned bytes."""

    def __init__(self, code: Any, *_: Any):
        if code != "u1":
            raise pickle.UnpicklingError(f"asks for an array of type {code!r}")

    def __setstate__(self, state: Any) -> None:
        pass


class ByteArray:
    """Stands in for numpy's array reconstruction, so that none of numpy's own unpickling runs on foreign bytes."""

    def __init__(self, *_: Any):
        self.values: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: Any) -> None:
        _version, shape, _kind, _fortran, content = state
        self.values = np.frombuffer(content.encode("latin1"), np.uint8).reshape(shape)


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): ByteArray,
    ("numpy", "ndarray"): ByteArray,
    ("numpy", "dtype"): ByteType,
}


class RestrictedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no CIFAR file needs") from None


def unpickle(data: bytes, path: Path) -> dict[str, Any]:
    try:
        content = RestrictedUnpickler(io.BytesIO(data), encoding="latin1").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(f"{path}: refused, nothing in it was run: {error}; {_ADVICE}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds a {type(content).__name__}, expected CIFAR's dictionary; {_ADVICE}")
    return content


@dataclass(frozen=True)
class PickledCifar(VerifiedFiles):
    """Where the files lie and what they must be; `sums` are the md5s that torchvision publishes."""

    algorithm = "md5"
    train: tuple[str, ...]
    test: tuple[str, ...]
    meta: str
    labels_key: str
    names_key: str
    url: str
    archive_md5: str

    def read_half(self, folder: Path, train: bool) -> tuple[np.ndarray, np.ndarray]:
        """Pixels (uint8 NHWC) and labels."""
        parts = [self.read_batch(folder / name) for name in (self.train if train else self.test)]
        pixels = np.concatenate([pixels for pixels, _ in parts]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), np.concatenate([labels for _, labels in parts])

    def read_batch(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        batch = unpickle(self.read_bytes(path), path)
        pixels, labels = batch.get("data"), batch.get(self.labels_key)
        if not isinstance(pixels, ByteArray) or pixels.values.ndim != 2 or pixels.values.shape[1] != 3072:
            raise DataError(f"{path}: 'data' is not an array of rows of 3072 bytes; {_ADVICE}")
        if not isinstance(labels, list) or len(labels) != len(pixels.values):
            raise DataError(f"{path}: {self.labels_key!r} is not a list of {len(pixels.values)} labels; {_ADVICE}")
        return pixels.values, np.array(labels, dtype=np.int64)

    def read_names(self, folder: Path) -> tuple[str, ...]:
        path = folder / self.meta
        return tuple(unpickle(self.read_bytes(path), path)[self.names_key])


PICKLED = {
    "cifar10": PickledCifar(
        folder="cifar-10-batches-py",
        train=("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"),
        test=("test_batch",),
        meta="batches.meta",
        labels_key="labels",
        names_key="label_names",
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        sums={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": PickledCifar(
        folder="cifar-100-python",
        train=("train",),
        test=("test",),
        meta="meta",
        labels_key="fine_labels",
        names_key="fine_label_names",
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        sums={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
}
