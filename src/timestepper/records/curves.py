"""The long lists of a record as arrays, column by column: they take little room, and every value comes back exactly.

In the file, which ``numpy.load`` opens, ``epochs.train.loss`` has the training loss of every epoch and
``step_sizes.layer1`` the final step sizes of a stage. A column that some epochs lack has the places of the others
beside it, in an array whose name ends in ``@``. What is not of one type, or not of one length, is kept as JSON.
"""

import io
import json
import zipfile
from collections import defaultdict
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def split(content: dict[str, Any]) -> Arrays:
    """The epochs and step sizes of a record; ``{"train": {"loss": 1.0}}`` stands in the column ``train.loss``."""
    cells: dict[str, dict[int, Any]] = defaultdict(dict)
    for place, line in enumerate(content["epochs"]):
        for key, value in line.items():
            inner = {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {}
            for name, item in (inner or {key: value}).items():
                cells[f"epochs.{name}"][place] = item
    arrays = {name: _array(list(column.values())) for name, column in cells.items()}
    holes = {name: column for name, column in cells.items() if len(column) < len(content["epochs"])}
    arrays |= {f"{name}@": np.array(list(column)) for name, column in holes.items()}
    return arrays | {f"step_sizes.{stage}": _array(rows) for stage, rows in content["step_sizes"].items()}


def join(arrays: Arrays) -> dict[str, Any]:
    """The epochs and step sizes that :func:`split` made arrays of."""
    epochs: dict[int, dict[str, Any]] = defaultdict(dict)
    sizes = {}
    for name, array in arrays.items():
        part, _, path = name.partition(".")
        values = array.tolist() if array.ndim else json.loads(array.item())
        if part == "step_sizes":
            sizes[path] = values
        elif not name.endswith("@"):
            key, _, inner = path.partition(".")
            at = arrays[f"{name}@"].tolist() if f"{name}@" in arrays else range(len(values))
            for place, value in zip(at, values, strict=True):
                table = epochs[place].setdefault(key, {}) if inner else epochs[place]
                table[inner or key] = value
    return {"epochs": [epochs[place] for place in sorted(epochs)], "step_sizes": sizes}


def _array(values: list[Any]) -> np.ndarray:
    """A list as the smallest array that gives exactly this list back."""
    text = json.dumps(values)
    try:
        made = np.array(values)
    except ValueError:  # lists of different lengths
        return np.array(text)
    with np.errstate(over="ignore"):
        short = made.astype(np.float32) if made.dtype == np.float64 else made
    exact = (array for array in (short, made) if array.dtype.kind in "bifU" and json.dumps(array.tolist()) == text)
    return next(exact, np.array(text))


def packed(arrays: Arrays) -> bytes:
    """A file of arrays: numpy's own form, compressed harder than numpy does."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_LZMA) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, values, allow_pickle=False)
    return data.getvalue()


def unpacked(data: bytes) -> Arrays:
    """The arrays of such a file."""
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return dict(found)
