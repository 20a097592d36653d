"""Controllers and folded weights as safetensors; no pickle anywhere.

Controllers are saved alone, ``steps.safetensors``, with ``steps.json`` beside it that says what to attach where.
Folded weights are saved under the base model's own keys. A sha256 file stands beside every safetensors file, because
safetensors itself does not notice a flipped bit.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from timestepper.api import Attached, attach, detach, find_attached, fold
from timestepper.errors import CheckpointError, MismatchError
from timestepper.files import write_atomic

FORMAT = 1


def save_controllers(net: nn.Module, path: str | Path) -> Path:
    """Write the controllers of an attached network to ``path`` and what to attach where to the JSON beside it."""
    attached = find_attached(net)
    path = Path(path)
    description = {"format": FORMAT, "model": type(detach(attached)).__name__, **_description(attached)}
    write_tensors(attached.controllers.state_dict(), path)
    write_atomic(path.with_suffix(".json"), (json.dumps(description, indent=2) + "\n").encode())
    return path


def load_controllers(model: nn.Module, path: str | Path) -> Attached:
    """Attach saved controllers to the network that they were made for."""
    path = Path(path)
    beside = path.with_suffix(".json")
    try:
        description = json.loads(beside.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{beside}: cannot be read as the description of controllers: {error}") from None
    if description.get("format") != FORMAT:
        raise CheckpointError(f"{beside}: format {description.get('format')} is not {FORMAT}; update timestepper")
    tensors = read_tensors(path)
    net = attach(
        model,
        description["controller"],
        reduction=description["reduction"],
        descriptor=description["descriptor"],
        descriptor_gradient=description["descriptor_gradient"],
    )
    if _description(net)["stages"] != description["stages"]:
        theirs = {stage["name"]: stage for stage in description["stages"]}
        ours = {stage["name"]: stage for stage in _description(net)["stages"]}
        name = next(name for name in [*theirs, *ours] if theirs.get(name) != ours.get(name))
        raise MismatchError(
            f"{path}: made for {description['model']} whose stage {name} is {theirs.get(name)}; "
            f"this {type(model).__name__} has {ours.get(name)}"
        )
    load_exactly(net.controllers, tensors, path)
    return net


def save_folded(net: nn.Module, path: str | Path) -> Path:
    """Write the weights of the folded network under the base model's own keys."""
    return write_tensors(fold(net).state_dict(), Path(path))


def load_folded(model: nn.Module, path: str | Path) -> nn.Module:
    """Load folded (or any plain) weights into a plain model, strictly."""
    path = Path(path)
    load_exactly(model, read_tensors(path), path)
    return model


def load_exactly(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Like ``load_state_dict(strict=True)``, but names every tensor that does not fit and loads nothing in part."""
    wanted = module.state_dict()
    tensors = dict(sorted(tensors.items()))  # a safetensors file gives them in any order, and eight are named
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not part of it" for name in tensors if name not in wanted]
    problems += [
        f"{name} is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise MismatchError(f"{path} does not fit {type(module).__name__}: {'; '.join(problems[:8])}{more}")
    module.load_state_dict(tensors)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> Path:
    """Write a safetensors file and its sha256, each whole or not at all; the sum goes last, so it vouches for the file.

    An older file keeps its sum until it is replaced: where there is no space for the new one, it stays good.
    """
    data = save_tensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_atomic(path, data)
    write_atomic(_checksum(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n".encode())
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file after its sha256 was verified."""
    verify(path)
    try:
        return load_tensors(path.read_bytes())
    except Exception as error:
        raise CheckpointError(f"{path}: is no safetensors file: {error}") from None


def verify(path: Path) -> str:
    """The sha256 of a file, which must be the one in the .sha256 file beside it."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        expected = _checksum(path).read_text().split()[0]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be verified: {error}; export it again") from None
    if found != expected:
        raise CheckpointError(f"{path}: sha256 is {found}, expected {expected}; the file is damaged, export it again")
    return found


def _description(net: Attached) -> dict:
    return {
        "controller": str(net.stepping.controller),
        "reduction": net.stepping.reduction,
        "descriptor": net.stepping.descriptor,
        "descriptor_gradient": net.stepping.descriptor_gradient,
        "stages": [
            {"name": stage.name, **asdict(controller.shape), "sites": [site.path for site in stage.sites]}
            for stage, controller in net.controlled()
        ],
    }


def _checksum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
