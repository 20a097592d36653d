"""CIFAR files for tests, in the byte format of the originals: pickles written by Python 2."""

import hashlib
import pickle
import struct
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from timestepper.data.cifar_pickled import PICKLED, PickledCifar


class Python2Pickler(pickle._Pickler):
    """Protocol 2 as Python 2 wrote it: every string is a byte string (opcode T), no trace of `_codecs`."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<i", len(content)) + content)
        self.memoize(value)

    dispatch[bytes] = save_string
    dispatch[str] = save_string


def write_python2(path: Path, content: object) -> str:
    """Writes the pickle as CIFAR's authors would have, and returns its md5."""
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)
    data = path.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    path.write_bytes(data)
    return hashlib.md5(data).hexdigest()


def write_small_cifar(root: Path, name: str, per_file: int = 20) -> tuple[PickledCifar, dict[str, dict]]:
    """A small CIFAR of random pixels below root; returns its layout with the sums of these files, and the content."""
    layout = PICKLED[name]
    folder = root / layout.folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    classes = 10 if name == "cifar10" else 100
    contents = {layout.meta: {layout.names_key: [f"class{number}" for number in range(classes)]}}
    for file in layout.train + layout.test:
        contents[file] = {
            "data": random.integers(256, size=(per_file, 3072), dtype=np.uint8),
            layout.labels_key: random.integers(classes, size=per_file).tolist(),
        }
    sums = {file: write_python2(folder / file, content) for file, content in contents.items()}
    return replace(layout, sums=sums), contents
