"""Our own networks: CIFAR ResNet, DenseNet and CliqueNet."""

import re

from torch import nn

from timestepper.adapters.base import Branch, register
from timestepper.errors import UnknownNameError
from timestepper.models import CifarResNet
from timestepper.models.cifar_resnet import BasicBlock


@register(BasicBlock)
def basic_block(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv2"), last=("bn2",), reduction=4)


def create(name: str, num_classes: int = 10, in_chans: int = 3) -> nn.Module:
    match = re.fullmatch(r"resnet(\d+)", name)
    if match:
        try:
            return CifarResNet(int(match[1]), num_classes, in_chans)
        except ValueError as error:
            raise UnknownNameError(f"cifar/{name}: {error}") from None
    raise UnknownNameError(f"unknown model cifar/{name}; known are resnet20, resnet32, ... (every 6n+2)")
