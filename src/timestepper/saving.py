"""Controllers and folded weights as safetensors; no pickle anywhere.

Controllers are saved alone, ``steps.safetensors``, with ``steps.json`` beside it that says what to attach where.
Folded weights are saved under the base model's own keys.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from timestepper import validate
from timestepper.api import Network, attach, detach, find_steps, fold
from timestepper.controllers import parse
from timestepper.controllers.base import is_sharded
from timestepper.errors import CheckpointError, MismatchError, WrappedModelError
from timestepper.files import as_path, prepare_file, with_checksum, write_json
from timestepper.sites import Discovery
from timestepper.steps import Steps
from timestepper.tensors import load_exactly, read_tensors, write_tensors
from timestepper.validate import Source, shown
from timestepper.warned import trained_is_expected

FORMAT = 1
_OPTIONS = ("reduction", "descriptor", "descriptor_gradient")
_SHOWN = ("normed", "network_sites")  # what the network itself shows of a stage


@dataclass(frozen=True)
class _Stage:
    """The form of a stage in a description; whether it fits a network, the network shows."""

    name: str
    sites: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Description:
    """What to attach where, as it stands beside saved controllers."""

    format: int
    model: str
    controller: str
    reduction: int | None
    descriptor: str
    descriptor_gradient: bool
    stages: tuple[_Stage, ...]
    start: str | float = "paper"
    chosen: bool = False
    folded: bool = False
    weights: dict[str, str] = field(default_factory=dict)  # sha256 of the files that they belong to, by name


def save_controllers(net: nn.Module, path: str | Path) -> Path:
    """Write the controllers of an attached network, and what to attach where to the JSON beside them.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.
        path: of the safetensors file; missing folders are made.

    Returns:
        The path.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        CheckpointError: the path is that of the JSON file, or names no file.
        WrappedModelError: the controllers are sharded over several processes.
    """
    return write_controllers(net, as_path(path))


def write_controllers(net: nn.Module, path: Path, **more: Any) -> Path:
    """``save_controllers`` with more fields in the JSON."""
    found = find_steps(net)
    beside = _beside(path)
    description = {"format": FORMAT, "model": type(found.root).__name__, **_description(found), **more}
    tensors = found.controllers.state_dict()
    if any(map(is_sharded, tensors.values())):
        raise WrappedModelError(
            f"the controllers of {type(found.root).__name__} are sharded; load its full state dict into an attached "
            "network that is not, and save that one's"
        )
    prepare_file(path)
    write_tensors(tensors, path)
    write_json(beside, with_checksum(description), 2)
    return path


def load_controllers(
    model: Network,
    path: str | Path,
    *,
    strict_depth: bool = True,
    example: Any = None,
    sites: str | Sequence[str] | Discovery | None = None,
    exclude: str | Sequence[str] | None = None,
) -> Network:
    """Attach saved controllers to a plain network, in place.

    Args:
        model: the network that they were made for.
        path: of the safetensors file; its JSON lies beside it.
        strict_depth: False takes a network with other numbers of blocks too. Its stages must have the same names,
            widths and descriptors; an LSTM has the same parameters at every depth, other kinds may not.
        example: as in ``attach``, and so are ``sites`` and ``exclude``; by default those of the file.

    Returns:
        The very module that was given, with controllers.

    Raises:
        CheckpointError: a file is missing, damaged or no such file; or it names a controller of a module that is not
            imported: import it first.
        MismatchError: they were made for another network. It is left as it was.
    """
    path = as_path(path)
    description = read_description(path)
    tensors = read_tensors(path)
    options = {name: description[name] for name in ("start", *_OPTIONS) if name in description}
    if sites is None and exclude is None and description.get("chosen"):
        sites = [site for stage in description["stages"] for site in stage.get("sites", ())]
    controller = parse(description["controller"], _beside(path))
    with trained_is_expected():
        net = attach(model, controller, example=example, sites=sites, exclude=exclude, **options)
    try:
        _compare(net, description, path, strict_depth)
        if "dt0" in tensors and tensors["dt0"].shape != find_steps(net).controllers.dt0.shape:
            raise MismatchError(f"{path}: start= counts from the first step sizes of each block, at one depth")
        controllers = find_steps(net).controllers
        load_exactly(controllers, tensors, path)
        wanted = controllers.state_dict()
        for name, tensor in tensors.items():
            if tensor.is_floating_point() != wanted[name].is_floating_point() or not tensor.isfinite().all():
                raise MismatchError(f"{path}: {name} ({tensor.dtype}) holds other than finite floats; save them again")
    except BaseException:
        detach(net)  # as it was
        raise
    return net


def _compare(net: nn.Module, description: dict, path: Path, strict_depth: bool) -> None:
    """Saved controllers belong to the stages that they were made for."""

    def stages(described: list[dict]) -> dict[str, dict]:
        hidden = () if strict_depth else ("sites",)
        return {stage["name"]: {key: stage[key] for key in stage if key not in hidden} for stage in described}

    theirs, ours = stages(description["stages"]), stages(_description(find_steps(net))["stages"])
    if list(theirs.items()) != list(ours.items()):
        name = next((name for name in [*theirs, *ours] if theirs.get(name) != ours.get(name)), next(iter(theirs)))
        raise MismatchError(
            f"{path}: made for {description['model']} whose stage {name} is {theirs.get(name)}; "
            f"this {type(net).__name__} has {ours.get(name)}"
        )


def save_folded(net: nn.Module, path: str | Path) -> Path:
    """Write the weights of the folded network under the plain model's own keys.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.
        path: of the safetensors file; its sha256 is written beside it. Missing folders are made.

    Returns:
        The path.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        NonFiniteError: a weight is NaN or infinite.
    """
    path, plain = as_path(path), fold(net)
    prepare_file(path)  # not earlier: a network that cannot be folded leaves no folder behind
    return write_tensors(plain.state_dict(), path)


def load_folded(model: nn.Module, path: str | Path) -> nn.Module:
    """Load folded weights into a plain model, strictly; or any others under its keys that have their .sha256 beside.

    Args:
        model: a plain network of the class that was attached to.
        path: of the safetensors file.

    Returns:
        The same network.

    Raises:
        CheckpointError: the file is missing, damaged or no such file.
        MismatchError: a tensor is missing, odd or of another shape; nothing is loaded in part.
    """
    path = as_path(path)
    load_exactly(model, read_tensors(path), path)
    return model


def _description(found: Steps) -> dict:
    return {
        "controller": str(found.stepping.controller),
        **({} if found.stepping.start is None else {"start": found.stepping.start}),
        **({"chosen": True} if found.stepping.chosen else {}),
        **{name: getattr(found.stepping, name) for name in _OPTIONS},
        "stages": [
            {
                "name": stage.name,
                **{key: n for key, n in asdict(controller.shape).items() if key not in _SHOWN},
                "sites": [site.path for site in stage.sites],
            }
            for stage, controller in found.controlled()
        ],
    }


def _beside(path: Path) -> Path:
    """Where the description of saved controllers lies; a tensor file of that very name would be overwritten by it."""
    if not path.name or path.suffix == ".json":
        raise CheckpointError(f"{path}: name the file .safetensors; what to attach where goes beside it as .json")
    return path.with_suffix(".json")


def read_description(path: Path) -> dict:
    """What to attach where, from beside the controllers. Its form is checked; whether it fits, the network shows."""
    tensors, path = path, _beside(path)
    if os.path.isdir(tensors):
        raise CheckpointError(f"{tensors} is a folder; name the .safetensors file, or use timestepper.from_pretrained")
    if not os.path.isfile(tensors):
        raise CheckpointError(f"{tensors}: no such file")
    if not os.path.isfile(path):
        raise CheckpointError(
            f"{tensors}: {path.name}, which says where its controllers belong, is not beside it; copy both, or load "
            "folded weights with timestepper.load_folded"
        )
    source = Source(path, CheckpointError, "save the controllers again")
    content = validate.read(path, source)
    found = content.get("format", FORMAT) if isinstance(content, dict) else FORMAT
    if found != FORMAT:
        raise CheckpointError(f"{path}: format {shown(found)} is not {FORMAT}; update timestepper")
    names = [stage.name for stage in validate.build(_Description, content, source, extra=True).stages]
    if twice := [name for name in names if names.count(name) > 1]:
        raise source.fault("stages", f"has {twice[0]} twice")
    if content.get("sha256") not in (None, with_checksum(content)["sha256"]):  # older ones have none
        raise source.fault("", "was changed since it was written")
    return content
