"""The paper's families: where the step size of their blocks enters, and networks made by name.

The only place that knows foreign model classes; they are named, so that no library has to be imported to know them.
"""

import difflib
import re
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from timestepper.errors import UnknownNameError, UnsupportedSiteError
from timestepper.models import CifarResNet, CliqueNet, DenseNet, NormFreeResNet
from timestepper.reparam import type_name
from timestepper.sites.known import Branch, register

_BASIC = Branch(convs=("conv1", "conv2"), last=("bn2",), reduction=4)
_BOTTLENECK = Branch(convs=("conv1", "conv3"), last=("bn3",), reduction=8)
_CLIQUE = ("from_input", "from_layers")
_BLOCKS = {
    "timestepper.models.cifar_resnet.BasicBlock": _BASIC,
    "torchvision.models.resnet.BasicBlock": _BASIC,
    "torchvision.models.resnet.Bottleneck": _BOTTLENECK,
    "timm.models.resnet.BasicBlock": _BASIC,
    "timm.models.resnet.Bottleneck": _BOTTLENECK,
    "timestepper.models.norm_free_resnet.NormFreeBlock": replace(_BASIC, last=("conv2",)),
    # The rows of the convolution that makes the new feature.
    "timestepper.models.densenet.DenseLayer": Branch(convs=("conv",), last=("conv",), reduction=4),
    # One step per layer, used in both stages: they share all filters that enter the layer.
    "timestepper.models.cliquenet.CliqueLayer": Branch(convs=_CLIQUE, last=_CLIQUE, reduction=4, reader=""),
}


def _branch(block: nn.Module) -> Branch:
    return replace(_BLOCKS[type_name(block)], gate=_gate(block))


for _name in _BLOCKS:
    register(_name)(_branch)


def _gate(block: nn.Module) -> str | None:
    """The first layer of a block's attention, which must be a plain squeeze-excite to be re-parameterised."""
    attention = getattr(block, "se", None)
    if attention is None:
        return None
    if type(attention).__name__ != "SEModule" or getattr(attention, "add_maxpool", False):
        raise UnsupportedSiteError(
            f"{type(block).__name__} has the attention {type(attention).__name__}; a step size can be moved through "
            "timm's SEModule (without add_maxpool) only; use a model without attention or with squeeze-excite"
        )
    return "se.fc1"


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


def use_original_stride(model: nn.Module) -> nn.Module:
    """Move each bottleneck's stride from its 3x3, where timm and torchvision have it, to its first 1x1, in place.

    Weights keep their shapes. This gives the networks of the paper: ResNet-50 with 3.86 instead of 4.09 GFLOPs.
    """
    for block in model.modules():
        convs = [conv for n in ("conv1", "conv2", "conv3") if isinstance(conv := getattr(block, n, None), nn.Conv2d)]
        if len(convs) == 3 and convs[1].stride != (1, 1):
            convs[0].stride, convs[1].stride = convs[1].stride, (1, 1)
    return model


def _from_timm(name: str, **options) -> nn.Module:
    import timm

    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=5) or timm.list_models("resnet*")[:8]
        raise UnknownNameError(f"unknown timm model {name!r}; did you mean {', '.join(close)}?")
    return timm.create_model(name, **options)


def _from_torchvision(name: str, num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    from torchvision import models

    known = models.list_models(models)
    if name not in known:
        raise UnknownNameError(f"unknown torchvision model {name!r}; known are {', '.join(known)}")
    if in_chans != 3:
        raise UnknownNameError(f"torchvision/{name} reads 3 channels, not {in_chans}; use timm/{name}")
    return models.get_model(name, num_classes=num_classes)


# And how many layers they may have: more would fill the memory of a usual machine before the network is built.
_OUR_OWN: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "resnet": (CifarResNet, 10_000),
    "nf_resnet": (NormFreeResNet, 10_000),
    "densenet": (DenseNet, 1_000),
}


def _our_own(name: str, **options) -> nn.Module:
    """``resnet20`` (every 6n+2), ``nf_resnet20`` (without norms), ``densenet40`` (every 3n+4) or ``cliquenet``."""
    if name == "cliquenet":
        return CliqueNet(**options)
    match = re.fullmatch(r"(resnet|nf_resnet|densenet)0*(\d+)", name)
    if match is None:
        raise UnknownNameError(
            f"unknown model cifar/{name}; known are resnet20, resnet32, ... (every 6n+2), nf_resnet20, ... "
            "(without norms), densenet40 (every 3n+4) and cliquenet"
        )
    family, deepest = _OUR_OWN[match[1]]
    if len(match[2]) > 5 or int(match[2]) > deepest:
        raise UnknownNameError(f"cifar/{name}: networks of this family have at most {deepest} layers; choose fewer")
    try:
        return family(int(match[2]), **options)
    except ValueError as error:
        raise UnknownNameError(f"cifar/{name}: {error}") from None


LIBRARIES: dict[str, Callable[..., nn.Module]] = {
    "timm": _from_timm,
    "torchvision": _from_torchvision,
    "cifar": _our_own,
}
