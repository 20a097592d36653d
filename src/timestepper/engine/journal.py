"""What a run writes down: metrics, times, TensorBoard, checkpoints, status; so the loop itself sees no files."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from timestepper.engine.checkpoint import Checkpoints, check
from timestepper.engine.metrics import JsonLines, read_known, read_lines, read_metrics
from timestepper.engine.progress import Display
from timestepper.engine.rundir import METRICS, RECIPE, TENSORBOARD, TIMING, RunDirectory, read_status
from timestepper.engine.tensorboard import TensorBoard
from timestepper.errors import CheckpointError, TimestepperError
from timestepper.files import write_atomic


class Journal:
    """Writes nothing: for every process but the first, and for a loop without a folder."""

    def step(self, step: int, epoch: int, loss: float, accuracy: float, images: float) -> None:
        """An update has come in; loss and accuracy are means since the last logged line."""

    def interval(self, line: dict[str, Any]) -> None:
        """A line of metrics."""

    def epoch(self, line: dict[str, Any]) -> None:
        """The line of an epoch's end."""

    def show_epoch(self, line: dict[str, Any], columns: Mapping[str, float], epochs: int) -> None:
        """Let a person know of it."""

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint."""

    def last_saved(self) -> str:
        """Which checkpoint a restart would go on from, in words."""
        return "nothing was saved"


class FolderJournal(Journal):
    """Writes into a run directory."""

    def __init__(
        self,
        folder: RunDirectory,
        *,
        identity: Mapping[str, Any],
        recipe: str,
        steps: int,
        epochs: int,
        display: Display,
        tensorboard: bool = True,
        stamp: Callable[[], Mapping[str, Any]] = dict,
        images: Mapping[str, Any] | None = None,
    ):
        self.folder, self.display, self.identity, self.recipe = folder, display, identity, recipe
        self._asked = {"recipe": recipe, **({"images": images} if images else {})}
        self.steps, self.epochs = steps, epochs
        self._wants_tensorboard = tensorboard
        self._stamp = stamp  # stands beside every time: what may differ from one to the next
        self._checkpoints = Checkpoints(folder.checkpoints)
        self._checkpoints.create()
        self._tensorboard: TensorBoard | None = None
        self._saved: str | None = None
        self._mark = time.monotonic()
        self._images = 0.0

    # -- start and end -----------------------------------------------------------------------------------------------

    def find(self) -> dict[str, Any] | None:
        """The state to go on from, checked to be of this network; None for a run that never saved anything."""
        found = self._checkpoints.latest(self.display.warn, set_aside=True)
        if found is None:
            if (read_status(self.folder.path) or {}).get("checkpoint") or _size(self.folder.path / METRICS):
                raise CheckpointError(
                    f"{self.folder.path} holds the log of a run and no checkpoint; put its checkpoints back, or move "
                    "the folder away to start again"
                )
            return None
        path, state = found
        check(path, state, self.identity)
        read_known(self.folder.path / METRICS, state)
        self._saved = path.name
        return state

    def recount(self, state: dict[str, Any], earlier_step: int) -> dict[str, Any]:
        """Save a state again under its new number, where another batch size counts the same epochs in other steps.

        The highest number is the newest checkpoint, so those above the new number have to go. The new one is written
        first and the logs are cut last: a kill in between leaves something that can be recounted again.
        """
        times = [line for line in read_lines(self.folder.path / TIMING) if line["step"] <= earlier_step]
        self._write_times([{**line, "step": min(line["step"], state["step"])} for line in times])
        state = {**state, **self._asked, **self._whole_epochs(state)}
        saved = self._checkpoints.save(state["step"], state, self.identity)
        every = self._checkpoints.paths()
        for path in every[every.index(saved) + 1 :]:
            path.unlink()
        self._saved = saved.name
        return state

    def _whole_epochs(self, state: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint knows of the metrics up to the last finished epoch: the unfinished one begins again."""
        lines = read_known(self.folder.path / METRICS, state).splitlines(keepends=True)
        whole = b"".join(line for line in lines if json.loads(line)["epoch"] <= state["epochs_done"])
        return {"metrics_bytes": len(whole), "metrics_sha256": hashlib.sha256(whole).hexdigest()}

    def open(self, state: dict[str, Any] | None) -> None:
        """Cut the logs back to the state and go on writing."""
        path, step = self.folder.path, state["step"] if state else 0
        self._asked |= {"changed": state["changed"]} if state and state.get("changed") else {}
        self._metrics = JsonLines(path / METRICS, state["metrics_bytes"] if state else 0)
        times = [line for line in read_lines(path / TIMING) if line["step"] <= step]
        if step and not times:  # the file was lost, and what follows is not the time of the whole run
            times = [{"step": step, "seconds": 0.0, "images": 0.0}]
        self._write_times(times)
        self._times = JsonLines(path / TIMING, _size(path / TIMING))
        if self._wants_tensorboard:
            self._tensorboard = TensorBoard(path / TENSORBOARD, read_metrics(path / METRICS), self.epochs)
        write_atomic(path / RECIPE, self.recipe.encode())
        self.status("running", step)
        self.display.start(step, self.steps)
        self._mark = time.monotonic()

    def status(self, state: str, step: int, **fields: Any) -> None:
        """Bring status.json up to date."""
        self.folder.status(state, step=step, steps=self.steps, checkpoint=self._saved, **fields)

    def close(self) -> None:
        """Close every file; the lock stays with the folder."""
        self.display.stop()
        for part in (getattr(self, "_metrics", None), getattr(self, "_times", None), self._tensorboard):
            if part is not None:
                part.close()

    # -- while it runs -----------------------------------------------------------------------------------------------

    def step(self, step: int, epoch: int, loss: float, accuracy: float, images: float) -> None:
        self._images += images
        self.display.step(step, epoch, loss, accuracy, images)

    def interval(self, line: dict[str, Any]) -> None:
        self._metrics.write(line)
        if self._tensorboard is not None:
            try:
                self._tensorboard.write(line)
            except TimestepperError:
                self.folder.check()
                raise

    def epoch(self, line: dict[str, Any]) -> None:
        self.interval(line)
        self._note_time(line["step"])
        self.status("running", line["step"])

    def show_epoch(self, line: dict[str, Any], columns: Mapping[str, float], epochs: int) -> None:
        figures = {f"{part} {name}": line[part][name] for part in ("train", "test") for name in line.get(part, {})}
        shown = {name: value for name, value in figures.items() if name.endswith(("loss", " error"))}
        self.display.epoch(line["epoch"], epochs, shown, columns)

    def save(self, step: int, state: dict[str, Any]) -> None:
        with self.folder.writing():
            written = {**state, **self._asked, **self._metrics.sync()}
            self._note_time(step)
            self._saved = self._checkpoints.save(step, written, self.identity).name
        self.status("running", step)

    def last_saved(self) -> str:
        return f"the last checkpoint is {self._saved}" if self._saved else super().last_saved()

    def _write_times(self, lines: list[dict[str, Any]]) -> None:
        write_atomic(self.folder.path / TIMING, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def _note_time(self, step: int) -> None:
        """Seconds and images since the last note of this process; the sum over the file is the run's time."""
        now = time.monotonic()
        if self._images:
            self._times.write({"step": step, "seconds": now - self._mark, "images": self._images, **self._stamp()})
        self._mark, self._images = now, 0.0


def _size(path: os.PathLike[str]) -> int:
    return os.stat(path).st_size if os.path.exists(path) else 0
