"""Which block classes have a step size and where it enters; the only place that knows foreign model classes."""

from collections.abc import Callable

from torch import nn

from timestepper.adapters import native, timm, torchvision
from timestepper.adapters.base import Branch, Site, Stage, find_stages, register, skipped_blocks
from timestepper.adapters.stride import use_original_stride
from timestepper.errors import UnknownNameError

LIBRARIES: dict[str, Callable[..., nn.Module]] = {
    "timm": timm.create,
    "torchvision": torchvision.create,
    "cifar": native.create,
}


def create_model(name: str, *, original_stride: bool = False, **options) -> nn.Module:
    """A new network by a name such as ``timm/resnet50``, ``torchvision/resnet18`` or ``cifar/resnet56``.

    Options are ``num_classes`` and ``in_chans``, as in timm, and what else its constructor takes.
    """
    library, _, model = name.partition("/")
    if library not in LIBRARIES or not model:
        raise UnknownNameError(
            f"unknown model {name!r}; write LIBRARY/MODEL, for example timm/resnet50, torchvision/resnet18, "
            "cifar/resnet56, cifar/densenet40 or cifar/cliquenet"
        )
    network = LIBRARIES[library](model, **options)
    return use_original_stride(network) if original_stride else network


def input_pixels(name: str) -> int:
    """Width of the images that a network of this name is made for."""
    return 32 if name.startswith("cifar/") else 224


__all__ = [
    "Branch",
    "Site",
    "Stage",
    "create_model",
    "find_stages",
    "input_pixels",
    "register",
    "skipped_blocks",
    "use_original_stride",
]
