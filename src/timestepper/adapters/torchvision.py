"""torchvision's ResNet and ResNeXt, and networks made by name."""

from torch import nn

from timestepper.adapters.base import Branch, register
from timestepper.errors import UnknownNameError


@register("torchvision.models.resnet.BasicBlock")
def basic_block(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv2"), last=("bn2",), reduction=4)


@register("torchvision.models.resnet.Bottleneck")
def bottleneck(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv3"), last=("bn3",), reduction=8)


def create(name: str, num_classes: int = 1000, in_chans: int = 3) -> nn.Module:
    from torchvision import models

    known = models.list_models(models)
    if name not in known:
        raise UnknownNameError(f"unknown torchvision model {name!r}; known are {', '.join(known)}")
    if in_chans != 3:
        raise UnknownNameError(f"torchvision/{name} reads 3 channels, not {in_chans}; use timm/{name}")
    return models.get_model(name, num_classes=num_classes)
