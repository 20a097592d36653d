"""``save_pretrained`` and ``from_pretrained`` as transformers and others have them, for attached networks.

An attached network writes folded weights, which anybody loads as the plain network. Beside them lie its controllers and
the parameters that step sizes enter as they were trained; with these the attached network comes back to the last bit.
Who hands a state dict to ``save_pretrained``, as a trainer does for its checkpoints, gets that state dict written.
Adapters of PEFT, which are written alone, are written as they were trained.
"""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from timestepper.api import find_steps, fold
from timestepper.errors import CheckpointError
from timestepper.root import CONTROLLERS as CHILD
from timestepper.root import root_methods
from timestepper.saving import load_controllers, read_description, write_controllers
from timestepper.steps import find
from timestepper.tensors import read_tensors, write_tensors

CONTROLLERS = "timestepper.safetensors"
TRAINED = "timestepper.trained.safetensors"


def _save_pretrained(original: Any) -> Callable:
    signature = inspect.signature(original.save_pretrained)

    @functools.wraps(original.save_pretrained)
    def save_pretrained(self, save_directory, *args, **kwargs):
        if find(self) is None:  # made by type(net)(...)
            return original.save_pretrained(self, save_directory, *args, **kwargs)
        signature.bind(self, save_directory, *args, **kwargs)  # which refuses what the original would
        options = dict(zip(list(signature.parameters)[2:], args, strict=False)) | kwargs
        if not options.get("is_main_process", True):
            return original.save_pretrained(self, save_directory, **options)  # takes part, and writes nothing
        folder = Path(save_directory)
        push = options.pop("push_to_hub", False)
        named = "state_dict" in options  # a trainer names it even where it is None
        folded = not named and not saves_adapters_alone(self)
        if push and (named or options.get("variant") is not None):
            raise CheckpointError(
                f"{folder}: push_to_hub=True takes neither state_dict nor variant; leave it out and upload the folder"
            )
        if named and "save_original_format" in signature.parameters:
            # Under the network's own keys, as a trainer reads them back. What transformers does instead, write the
            # names of its older versions, goes by patterns that match in the middle of ``controllers.*`` too.
            options.setdefault("save_original_format", False)
        folder.mkdir(parents=True, exist_ok=True)
        saved = original.save_pretrained(fold(self) if folded else self, save_directory, **options)
        if folded:
            write_tensors(find_steps(self).trained_parameters(), folder / TRAINED)
        else:
            (folder / TRAINED).unlink(missing_ok=True)  # these weights are the trained ones
        write_controllers(self, folder / CONTROLLERS, folded=folded, weights=_sums(folder))
        if not push:
            return saved
        # Only now, because the original would upload before the controllers are there. This saves once more, elsewhere.
        options["repo_id"] = options.get("repo_id") or folder.name
        taken = inspect.signature(original.push_to_hub).parameters
        return self.push_to_hub(**{name: value for name, value in options.items() if name in taken})

    return save_pretrained


def saves_adapters_alone(net: nn.Module) -> bool:
    """As PEFT's networks do, and transformers' that were given adapters: these go onto a base that is not folded."""
    named = any(kind.__name__ == "PeftModel" for kind in type(net).__mro__)
    return named or getattr(net, "_hf_peft_config_loaded", False)


root_methods["save_pretrained"] = _save_pretrained


def from_pretrained(kind: Any, folder: str | Path, *, example: Any = None, **options: Any) -> nn.Module:
    """The attached network that ``net.save_pretrained(folder)`` wrote, or a trainer of it as a checkpoint.

    Args:
        kind: a class with ``from_pretrained``, such as ``transformers.ResNetForImageClassification``. By itself its
            ``from_pretrained`` gives the plain network; of a trainer's checkpoint, one without its step sizes.
        folder: a folder on this machine.
        example: as in ``attach``.
        options: go to ``kind.from_pretrained``.

    Returns:
        The network with its controllers, its weights as they were trained.

    Raises:
        CheckpointError: the folder holds no controllers, or they are damaged; a file is missing; the weights are not
            those that the controllers were saved with.
        MismatchError: they belong to another network.
    """
    folder = Path(folder)
    if not (folder / CONTROLLERS).exists():
        name = getattr(kind, "__name__", kind)
        inner = _inner_controllers(folder)
        told = (
            f", but {inner} in its weights, for only a part of {name} was attached to; attach to what you save, or "
            "attach to that part again and load the weights by load_state_dict"
            if inner
            else f"; {name}.from_pretrained loads a plain network"
        )
        raise CheckpointError(f"{folder}: holds no {CONTROLLERS}{told}")
    folded = _is_folded(folder)
    net = load_controllers(kind.from_pretrained(folder, **options), folder / CONTROLLERS, example=example)
    if folded:
        with torch.no_grad():
            saved = read_tensors(folder / TRAINED)
            entered = find_steps(net).trained_parameters()
            if saved.keys() != entered.keys():
                odd = min(saved.keys() ^ entered.keys())
                raise CheckpointError(
                    f"{folder / TRAINED}: {odd} is only in the file or only in the network; save it again"
                )
            for name, tensor in entered.items():
                tensor.copy_(saved[name])
    return net


def _sums(folder: Path) -> dict[str, str]:
    """The sha256 of every file of weights, by its name."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.is_file() and path.name not in (CONTROLLERS, TRAINED):
            with path.open("rb") as file:  # not read as a whole: it may be larger than the memory
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _inner_controllers(folder: Path) -> str | None:
    """A key of controllers among the weights in a folder, where ``attach`` was called on a part of what was saved."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "pt") as file:
                keys = list(file.keys())
        except SafetensorError:
            continue  # no weights: transformers says what is wrong with them
        if found := next((key for key in keys if f".{CHILD}." in key), None):
            return found
    return None


def _is_folded(folder: Path) -> bool:
    """Whether the weights in a folder are folded. They must be those that its controllers were saved with."""
    description = read_description(folder / CONTROLLERS)
    sums = _sums(folder)
    for name, expected in description.get("weights", {}).items():  # older ones have none
        if sums.get(name) != expected:
            raise CheckpointError(
                f"{folder / name}: is missing or not what {CONTROLLERS} was saved with; save the attached network "
                f"again, or, if a plain one was saved over it, delete {CONTROLLERS}"
            )
    folded = description.get("folded", (folder / TRAINED).exists())
    if folded and not (folder / TRAINED).exists():
        raise CheckpointError(
            f"{folder / TRAINED}: is missing, and the weights beside it are folded; copy all files, or save again"
        )
    return folded
