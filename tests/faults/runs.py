"""Tiny runs for the fault tests, and what is compared at their ends."""

import json
import shutil
from pathlib import Path
from typing import Any

from digit_folder import write_digit_folder as write_digit_folder  # runs.write_digit_folder, for the tests

from timestepper.engine.checkpoint import Checkpoints, read
from timestepper.engine.rundir import CHECKPOINTS, METRICS, read_status

# 1437 images: 11 updates an epoch; 360 test images: 2 evaluated batches.
DIGITS = [
    "smoke/digits",
    "data.batch_size=128",
    "data.test_batch_size=180",
    "run.epochs=2",
    "run.tensorboard=false",
]
SHORT = [*DIGITS, "data.batch_size=256"]  # 5 updates an epoch, a fraction of a second in all


def train(run: Path, *changes: str, recipe: list[str] = DIGITS) -> list[str]:
    """The arguments of ``timestepper train`` for a run directory; later changes win."""
    return ["train", *recipe, *changes, "--run-dir", str(run)]


def folder_recipe(root: Path) -> list[str]:
    """A recipe that reads image files with two workers: 200 images, 10 updates an epoch."""
    return [
        "smoke/digits",
        "data.name=folder",
        f"data.root={root}",
        "data.size=8",
        "data.resize=8",
        "data.augment=resized_crop",
        "data.batch_size=20",
        "data.test_batch_size=25",
        "data.workers=2",
        "run.epochs=3",
        "run.checkpoint_steps=3",
    ]


FOLDER_STEPS = 30


# -- looking at runs -------------------------------------------------------------------------------------------------


def checkpoints(run: Path) -> list[Path]:
    """Checkpoint files, oldest first."""
    return Checkpoints(run / CHECKPOINTS).paths()


def newest(run: Path) -> dict[str, Any]:
    """The content of the newest checkpoint, which must be sound."""
    return read(checkpoints(run)[-1])


def state_of(run: Path) -> str:
    """running, interrupted, failed, finished, killed or nothing."""
    return (read_status(run) or {}).get("state", "nothing")


def log(run: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl; the last may still be on its way."""
    if not (run / METRICS).exists():
        return []
    return [json.loads(line) for line in (run / METRICS).read_text().splitlines(keepends=True) if line.endswith("\n")]


def logged_steps(run: Path) -> list[int]:
    """The steps of metrics.jsonl, in its order."""
    return [line["step"] for line in log(run) if line["kind"] == "step"]


def at_step(run: Path, step: int) -> bool:
    """Whether the log has come so far."""
    return (logged_steps(run) or [0])[-1] >= step


def leftovers(run: Path) -> list[str]:
    """Temporary files."""
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.tmp"))


def end_of(run: Path) -> dict[str, bytes]:
    """All that two runs of one recipe must agree in, as bytes: weights, momentum, best metric, log."""
    state = newest(run)
    found = {f"model.{name}": _bytes(tensor) for name, tensor in state["model"].items()}
    found |= {f"momentum.{index}": _bytes(tensor) for index, tensor in enumerate(state["momentum"])}
    found["position"] = repr((state["step"], state["epochs_done"])).encode()
    found["best"] = json.dumps(state["best"]).encode()
    found["metrics"] = (run / METRICS).read_bytes()
    found["exported weights"] = (run / "weights.safetensors").read_bytes()
    return found


def differing(run: Path, reference: Path) -> list[str]:
    """Names of what differs at the ends of two runs; empty where not one bit does."""
    ours, theirs = end_of(run), end_of(reference)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def _bytes(tensor: Any) -> bytes:
    header = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    return header + tensor.contiguous().numpy().tobytes()


def copy(run: Path, target: Path) -> Path:
    """A copy of a run directory to damage."""
    shutil.copytree(run, target)
    return target


# -- damage ----------------------------------------------------------------------------------------------------------


def flip_bit(data: bytes, bit: int) -> bytes:
    """One bit turned over."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def zero_page(data: bytes, page: int, size: int = 4096) -> bytes:
    """One page of zeros, as a disk leaves it that lost a write."""
    start = page * size
    return data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
