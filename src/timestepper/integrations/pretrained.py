"""``save_pretrained`` and ``from_pretrained`` as transformers and others have them, for attached networks.

An attached network writes folded weights, which anybody loads as the plain network. Beside them lie its controllers and
the parameters that step sizes enter as they were trained; with these the attached network comes back to the last bit.
Who hands a state dict to ``save_pretrained``, as a trainer does for its checkpoints, gets that state dict written.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timestepper.api import find_steps, fold
from timestepper.errors import CheckpointError
from timestepper.reparam import trained
from timestepper.root import root_methods
from timestepper.saving import load_controllers, read_tensors, save_controllers, write_tensors

CONTROLLERS = "timestepper.safetensors"
TRAINED = "timestepper.trained.safetensors"


def _save_pretrained(original: Any) -> Callable:
    @functools.wraps(original.save_pretrained)
    def save_pretrained(self, save_directory, *args, **kwargs):
        folder = Path(save_directory)
        folder.mkdir(parents=True, exist_ok=True)
        if "state_dict" in kwargs:
            (folder / TRAINED).unlink(missing_ok=True)  # these weights are the trained ones
            found = original.save_pretrained(self, save_directory, *args, **kwargs)
        else:
            plain: Any = fold(self)
            found = plain.save_pretrained(save_directory, *args, **kwargs)
            write_tensors(_entered(self), folder / TRAINED)
        save_controllers(self, folder / CONTROLLERS)
        return found

    return save_pretrained


root_methods["save_pretrained"] = _save_pretrained


def from_pretrained(kind: Any, folder: str | Path, **options: Any) -> nn.Module:
    """The attached network that ``net.save_pretrained(folder)`` wrote, or a trainer of it as a checkpoint.

    Args:
        kind: a class with ``from_pretrained``, such as ``transformers.ResNetForImageClassification``. By itself its
            ``from_pretrained`` gives the plain network; of a trainer's checkpoint, one without its step sizes.
        folder: a folder on this machine.
        options: go to ``kind.from_pretrained``.

    Returns:
        The network with its controllers, its weights as they were trained.

    Raises:
        CheckpointError: the folder holds no controllers, or they are damaged.
        MismatchError: they belong to another network.
    """
    folder = Path(folder)
    if not (folder / CONTROLLERS).exists():
        raise CheckpointError(
            f"{folder}: holds no {CONTROLLERS}; {getattr(kind, '__name__', kind)}.from_pretrained loads a plain network"
        )
    net = load_controllers(kind.from_pretrained(folder, **options), folder / CONTROLLERS)
    if (folder / TRAINED).exists():
        with torch.no_grad():
            saved = read_tensors(folder / TRAINED)
            entered = _entered(net)
            if saved.keys() != entered.keys():
                odd = sorted(saved.keys() ^ entered.keys())[0]
                raise CheckpointError(
                    f"{folder / TRAINED}: {odd} is only in the file or only in the network; save it again"
                )
            for name, tensor in entered.items():
                tensor.copy_(saved[name])
    return net


def _entered(net: nn.Module) -> dict[str, torch.Tensor]:
    """The parameters that step sizes enter, as they are trained."""
    root = find_steps(net).root
    names = find_steps(net).effective_parameters()
    split = {name: name.rpartition(".") for name in names}
    found = {name: trained(root.get_submodule(layer), own) for name, (layer, _, own) in split.items()}
    return {name: tensor.detach() for name, tensor in found.items() if tensor is not None}
