"""timm's ResNet, ResNeXt and SE-ResNet, and networks made by name."""

from torch import nn

from timestepper.adapters.base import Branch, register
from timestepper.errors import UnknownNameError, UnsupportedSiteError


@register("timm.models.resnet.BasicBlock")
def basic_block(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv2"), last=("bn2",), gate=_gate(block), reduction=4)


@register("timm.models.resnet.Bottleneck")
def bottleneck(block: nn.Module) -> Branch:
    return Branch(convs=("conv1", "conv3"), last=("bn3",), gate=_gate(block), reduction=8)


def _gate(block: nn.Module) -> str | None:
    """The first layer of the block's attention, which must be a plain squeeze-excite to be re-parameterised."""
    if block.se is None:
        return None
    if type(block.se).__name__ != "SEModule" or getattr(block.se, "add_maxpool", False):
        raise UnsupportedSiteError(
            f"{type(block).__name__} has the attention {type(block.se).__name__}; a step size can be moved through "
            "timm's SEModule (without add_maxpool) only; use a model without attention or with squeeze-excite"
        )
    return "se.fc1"


def create(name: str, **options) -> nn.Module:
    import timm

    if not timm.is_model(name):
        import difflib

        close = difflib.get_close_matches(name, timm.list_models(), n=5) or timm.list_models("resnet*")[:8]
        raise UnknownNameError(f"unknown timm model {name!r}; did you mean {', '.join(close)}?")
    return timm.create_model(name, **options)
