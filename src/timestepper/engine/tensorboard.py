"""TensorBoard's files: a view of metrics.jsonl, written anew on resume so that every step stands in them once."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from timestepper.errors import RunDirectoryError
from timestepper.files import explain

_PIXELS = 6  # edge of a heat map's cell
_VIRIDIS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], dtype=float)


class TensorBoard:
    """Scalars of every line; a heat map over depth and time of every profile that the epochs report."""

    def __init__(self, folder: Path, earlier: Iterable[dict[str, Any]], epochs: int):
        from torch.utils.tensorboard import SummaryWriter

        shutil.rmtree(folder, ignore_errors=True)
        # purge_step tells a TensorBoard that is watching to forget what it read from the removed files.
        try:
            self._writer = SummaryWriter(str(folder), purge_step=0)
        except OSError as error:
            raise explain(error, folder, 100_000) from error
        self._folder = folder
        self._epochs = epochs
        self._profiles: dict[str, list[list[float]]] = {}
        for line in earlier:
            self.write(line)

    def write(self, line: dict[str, Any]) -> None:
        """Show a line of metrics.jsonl."""
        if line["kind"] == "step":
            scalars = {f"train/{name}": line[name] for name in ("loss", "error", "lr")}
        else:
            parts = ((part, name, value) for part in ("train", "test") for name, value in line.get(part, {}).items())
            scalars = {f"epoch/{part}_{name}": value for part, name, value in parts} | line.get("scalars", {})
        try:
            for name, value in scalars.items():
                self._writer.add_scalar(name, value, line["step"])
            for name, profile in line.get("profiles", {}).items():
                self._profiles.setdefault(name, []).append(profile)
                if line["epoch"] == self._epochs or line["epoch"] % max(1, self._epochs // 20) == 0:
                    self._writer.add_image(name, heat_map(self._profiles[name]), line["step"], dataformats="HWC")
        except FileNotFoundError as error:
            raise RunDirectoryError(
                f"{self._folder} was removed while it was written; the same command goes on and writes it anew"
            ) from error
        except OSError as error:
            raise explain(error, self._folder, 100_000) from error

    def close(self) -> None:
        self._writer.close()


def heat_map(rows: list[list[float]]) -> np.ndarray:
    """Time from left to right, depth from top to bottom, colour from 0 to the largest value: an RGB image."""
    values = np.asarray(rows, dtype=float).T
    shares = values / max(values.max(), 1e-12)
    colours = np.stack([np.interp(shares, np.linspace(0, 1, len(_VIRIDIS)), channel) for channel in _VIRIDIS.T], -1)
    return colours.repeat(_PIXELS, axis=0).repeat(_PIXELS, axis=1).astype(np.uint8)
