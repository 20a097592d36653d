"""Our own networks: CIFAR ResNet with and without norms, DenseNet and CliqueNet."""

import re

from torch import nn

from timestepper.adapters.base import Branch, register
from timestepper.errors import UnknownNameError
from timestepper.models import CifarResNet, CliqueNet, DenseNet, NormFreeResNet
from timestepper.models.cifar_resnet import BasicBlock
from timestepper.models.cliquenet import CliqueLayer
from timestepper.models.densenet import DenseLayer
from timestepper.models.norm_free_resnet import NormFreeBlock


@register(BasicBlock)
def basic_block(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv2"), last=("bn2",), reduction=4)


@register(NormFreeBlock)
def norm_free_block(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv2"), last=("conv2",), reduction=4)


@register(DenseLayer)
def dense_layer(layer: nn.Module) -> Branch:
    """The step size scales the rows of the convolution that makes the new feature."""
    return Branch(convs=("conv",), last=("conv",), reduction=4)


@register(CliqueLayer)
def clique_layer(layer: nn.Module) -> Branch:
    """One step per layer, used in both stages: the stages share all filters that enter the layer."""
    filters = ("from_input", "from_layers")
    return Branch(convs=filters, last=filters, reduction=4, reader="")


def create(name: str, **options) -> nn.Module:
    """``resnet20`` (every 6n+2), ``nf_resnet20`` (without norms), ``densenet40`` (every 3n+4) or ``cliquenet``."""
    if name == "cliquenet":
        return CliqueNet(**options)
    match = re.fullmatch(r"(resnet|nf_resnet|densenet)(\d+)", name)
    if match is None:
        raise UnknownNameError(
            f"unknown model cifar/{name}; known are resnet20, resnet32, ... (every 6n+2), nf_resnet20, ... "
            "(without norms), densenet40 (every 3n+4) and cliquenet"
        )
    family = {"resnet": CifarResNet, "nf_resnet": NormFreeResNet, "densenet": DenseNet}[match[1]]
    try:
        return family(int(match[2]), **options)
    except ValueError as error:
        raise UnknownNameError(f"cifar/{name}: {error}") from None
