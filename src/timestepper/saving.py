"""Controllers and folded weights as safetensors; no pickle anywhere.

Controllers are saved alone, ``steps.safetensors``, with ``steps.json`` beside it that says what to attach where.
Folded weights are saved under the base model's own keys. A sha256 file stands beside every safetensors file, because
safetensors itself does not notice a flipped bit.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from timestepper import validate
from timestepper.api import Network, attach, detach, find_steps, fold
from timestepper.controlled import is_sharded
from timestepper.errors import CheckpointError, MismatchError, WrappedModelError, first_line
from timestepper.files import as_path, read_file, with_checksum, write_atomic
from timestepper.sites import Discovery
from timestepper.steps import Steps
from timestepper.validate import Source, shown

FORMAT = 1
_OPTIONS = ("reduction", "descriptor", "descriptor_gradient")


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
        path: of the safetensors file.

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
    write_tensors(tensors, path)
    write_atomic(beside, (json.dumps(with_checksum(description), indent=2) + "\n").encode())
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
        CheckpointError: a file is missing, damaged or no such file.
        MismatchError: they were made for another network. It is left as it was.
    """
    path = as_path(path)
    description = read_description(path)
    tensors = read_tensors(path)
    options = {name: description[name] for name in ("start", *_OPTIONS) if name in description}
    if sites is None and exclude is None and description.get("chosen"):
        sites = [site for stage in description["stages"] for site in stage.get("sites", ())]
    net = attach(model, description["controller"], example=example, sites=sites, exclude=exclude, **options)
    try:
        _compare(net, description, path, strict_depth)
        load_exactly(find_steps(net).controllers, tensors, path)
        for name, tensor in tensors.items():
            if not tensor.is_floating_point() or not tensor.isfinite().all():
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
        path: of the safetensors file; its sha256 is written beside it.

    Returns:
        The path.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        NonFiniteError: a weight is NaN or infinite.
    """
    return write_tensors(fold(net).state_dict(), as_path(path))


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
    data = save_tensors(_apart(tensors))
    write_atomic(path, data)
    write_atomic(_checksum(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n".encode())
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file after its sha256 was verified."""
    data, _ = _verified(path)
    try:
        return load_tensors(data)
    except Exception as error:
        raise CheckpointError(f"{path}: is no safetensors file: {first_line(error)}; export it again") from None


def verify(path: Path) -> str:
    """The sha256 of a file, which must be the one in the .sha256 file beside it.

    A file without one is refused, not trusted: an export that was cut short leaves it so.
    """
    return _verified(path)[1]


def _verified(path: Path) -> tuple[bytes, str]:
    """What is in a file, read once, so that what is used is what was verified; and its sha256."""
    try:
        data = read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; check its name") from None
    found, beside = hashlib.sha256(data).hexdigest(), _checksum(path)
    try:
        expected = read_file(beside).decode().split()[0]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "holds no sha256"
        raise CheckpointError(
            f"{path}: cannot be verified: {beside} {reason}; export it again, or, if you trust the file as it is, "
            f"make the sum yourself: sha256sum {quote(str(path))} > {quote(str(beside))}"
        ) from None
    if found != expected:
        raise CheckpointError(f"{path}: sha256 is {found}, expected {expected}; the file is damaged, export it again")
    return data, found


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, no two in the same memory, which safetensors refuses: a block in two places has two names."""
    apart: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def _description(found: Steps) -> dict:
    return {
        "controller": str(found.stepping.controller),
        **({} if found.stepping.start is None else {"start": found.stepping.start}),
        **({"chosen": True} if found.stepping.chosen else {}),
        **{name: getattr(found.stepping, name) for name in _OPTIONS},
        "stages": [
            {
                "name": stage.name,
                **{key: n for key, n in asdict(controller.shape).items() if key != "normed"},  # the network shows
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
    path = _beside(path)
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


def _checksum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
