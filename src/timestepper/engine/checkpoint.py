"""Checkpoints: immutable, verified files. The newest sound one wins; damage is named, never loaded."""

import contextlib
import io
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from timestepper import validate
from timestepper.errors import CheckpointError, DivergedError
from timestepper.files import check_readable, make_folder, remove_leftovers, write_atomic
from timestepper.terminal import tell
from timestepper.validate import Source, limited

FORMAT = 1
KEEP = 2
_NAME = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,14})\.pt")


@dataclass(frozen=True)
class _State:
    """What a run saves and goes on from."""

    identity: dict
    model: dict[str, Tensor]
    momentum: list[Tensor]
    interval: list[float]
    epoch: list[float]
    best: dict
    recipe: str
    format: int = limited(least=1)
    step: int = limited(least=0)
    epochs_done: int = limited(least=0)
    metrics_bytes: int = limited(least=0)
    world: int = limited(least=1)
    metrics_sha256: str = ""
    observed: list[Tensor] = field(default_factory=list)
    images: dict = field(default_factory=dict)
    changed: str = ""


class Checkpoints:
    """The files ``step-00000048.pt`` of one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def create(self) -> None:
        """Make the folder; remove what a killed process left half written."""
        make_folder(self.folder)
        remove_leftovers(self.folder)

    def paths(self) -> list[Path]:
        """All checkpoint files, oldest first; what has any other name, or is a folder, is the user's."""
        found = (path for path in self.folder.glob("step-*.pt") if _NAME.fullmatch(path.name) and not path.is_dir())
        return sorted(found, key=_step)

    def save(self, step: int, state: Mapping[str, Any], identity: Mapping[str, Any]) -> Path:
        """Write the checkpoint of a step, then remove all but the last two."""
        content = {"format": FORMAT, "identity": identity, "step": step, **state}
        whole = _plain(content, "checkpoint", step, fetch(content))
        buffer = io.BytesIO()
        torch.save(whole, buffer)
        path = self.folder / f"step-{step:08d}.pt"
        with contextlib.suppress(OSError):  # where somebody has removed it; write_atomic tells of all else
            self.folder.mkdir()
        write_atomic(path, buffer.getvalue())
        for old in self.paths()[:-KEEP]:
            if old != path:
                old.unlink(missing_ok=True)
        return path

    def latest(self, tell: Callable[[str], None] = tell, set_aside: bool = False) -> tuple[Path, dict[str, Any]] | None:
        """The newest sound checkpoint, or None where there never was one. Damaged newer ones are named.

        ``set_aside`` also renames them, so that they do not count among the two that are kept.
        """
        damaged: list[tuple[Path, str]] = []
        for path in reversed(self.paths()):
            try:
                state = read(path)
                if state["step"] != _step(path):
                    raise CheckpointError(f"{path} is damaged or renamed (it is of step {state['step']})")
            except CheckpointError as error:
                damaged.append((path, str(error)))
                continue
            for bad, reason in damaged:
                tell(f"{reason}; going back to {path.name}")
                if set_aside and not bad.with_name(bad.name + ".damaged").is_dir():
                    bad.rename(bad.with_name(bad.name + ".damaged"))
            return path, state
        if damaged:
            reasons = "; ".join(reason for _, reason in damaged)
            raise CheckpointError(
                f"no sound checkpoint in {self.folder}: {reasons}; move {self.folder.parent} away to start again"
            )
        return None


def _step(path: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(path.stem.removeprefix("step-"))


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's content, after its checksums were found right: tensors and plain values, nothing else."""
    try:
        check_readable(path)
        with zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint (not a whole zip archive)") from error
    if wrong is not None:
        raise CheckpointError(f"{path} is damaged (checksum of {wrong} is wrong)")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} is refused: it holds something other than tensors and plain values") from error
    source = Source(path, CheckpointError, "it is no checkpoint of timestepper, or damaged")
    sound = validate.build(_State, state, source, extra=True)
    for name, sums in (("interval", sound.interval), ("epoch", sound.epoch)):
        if len(sums) not in (0, 3):
            raise source.fault(name, f"has {len(sums)} numbers and not 3")
    return state


def check(path: Path, state: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of a newer format or of another network before anything of it is loaded."""
    if state["format"] > FORMAT:
        raise CheckpointError(
            f"{path} has format {state['format']}, this version reads up to {FORMAT}: update timestepper"
        )
    if dict(state["identity"]) != dict(identity):
        raise CheckpointError(
            f"{path}: checkpoint is {_describe(state['identity'])}, you asked for {_describe(identity)}; "
            "use the matching recipe or another run directory"
        )


def check_fit(where: object, state: Mapping[str, Any], model: nn.Module, momentum: Sequence[Tensor] | None) -> None:
    """Refuse tensors that are not those of the network and (where given) of the optimiser, before any is loaded."""
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in state["model"].items()}
    for name in sorted(wanted.keys() | found.keys(), key=str):
        if wanted.get(name) != found.get(name):
            there, here = (tuple(some[name]) if name in some else "missing" for some in (found, wanted))
            raise CheckpointError(
                f"{where}: {name} is {there} in the checkpoint and {here} in the network; use the recipe that it was "
                "trained with, or start another run"
            )
    if momentum is not None and len(momentum) != len(state["momentum"]):
        raise CheckpointError(
            "optimiser.kind cannot change within a run, nor optimiser.momentum from or to 0; start another run"
        )
    if momentum is not None and [one.shape for one in momentum] != [one.shape for one in state["momentum"]]:
        raise CheckpointError(f"{where}: its momentum has other shapes than the weights; start another run")


def _describe(identity: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in identity.items())


def fetch(state: Any) -> dict[int, Tensor]:
    """CPU copies of all GPU tensors in a state, by id: one transfer per data type, where one per tensor would wait
    hundreds of times for a GPU that other runs keep busy."""
    found = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.is_cuda]
    copies: dict[int, Tensor] = {}
    for dtype in {tensor.dtype for tensor in found}:
        group = [tensor for tensor in found if tensor.dtype == dtype]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in group]).cpu()
        parts = flat.split([tensor.numel() for tensor in group])
        copies |= {id(tensor): part.view(tensor.shape) for tensor, part in zip(group, parts, strict=True)}
    return copies


def _plain(value: Any, name: str, step: int, fetched: Mapping[int, Tensor]) -> Any:
    """A copy that torch.load accepts without unpickling code; a NaN or infinity in it is an error."""
    if isinstance(value, Tensor):
        value = fetched.get(id(value), value)
        if value.is_floating_point() and not bool(value.isfinite().all()):
            message = f"step {step}: {name} holds NaN or infinity; not saved, the last checkpoint is sound"
            raise DivergedError(message, step)
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        prefix = "" if name == "checkpoint" else f"{name}."
        return {sys.intern(key): _plain(item, f"{prefix}{key}", step, fetched) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}.{index}", step, fetched) for index, item in enumerate(value)]
    if type(value) is str:
        return sys.intern(value)  # pickle writes the same bytes for equal states only where equal strings are one
    if value is None or type(value) in (int, float, bool):
        return value
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold")
