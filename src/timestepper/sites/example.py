"""An input to look at a network with: the user's, or one made from what the network says of itself."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from timestepper.errors import MismatchError
from timestepper.sites.twin import Call

_PIXELS = 224  # of image networks whose configuration gives no size
_TOKENS = 8


class NeedsExampleError(MismatchError):
    """Nothing is known of a network's input."""


def calls_of(net: nn.Module, example: Any = None) -> list[Call]:
    """The call that an example stands for: a tensor or list is one argument, a tuple all of them, a dict by name.

    Without an example, calls to try one after the other.
    """
    if example is None:
        with torch.device("cpu"):  # where they are drawn, whatever the user's default is (torch.set_default_device)
            return _made(net)
    if isinstance(example, Mapping):  # a tokenizer's, too
        example = dict(example)
    example = tree_map(lambda value: value.detach() if isinstance(value, Tensor) else value, example)
    if isinstance(example, tuple):
        return [Call(example, {})]
    return [Call((), example) if isinstance(example, dict) else Call((example,), {})]


def _made(net: nn.Module) -> list[Call]:
    drawing = torch.Generator().manual_seed(0)
    batch = 2 if any("running_mean" in module._buffers for module in net.modules()) else 1
    told = getattr(net, "pretrained_cfg", None) or getattr(net, "default_cfg", None)
    if isinstance(told, dict) and told.get("input_size"):
        channels, *size = _real_size(net, tuple(told["input_size"]))
        sizes = [size] if told.get("fixed_input_size") else [[pixels // 2 for pixels in size], size]  # less to compute
        return [Call((torch.randn(batch, channels, *pixels, generator=drawing),), {}) for pixels in sizes]
    wanted = inspect.signature(net.forward).parameters
    made: dict[str, Tensor] = {}
    if (config := getattr(net, "config", None)) is not None:
        made = _from_config(config, wanted, batch, drawing)
    if not made:
        raise NeedsExampleError(
            f"{type(net).__name__} says nothing of its input; pass example=, what its forward takes: a tensor such as "
            "torch.randn(2, 3, 224, 224), a tuple of arguments, or a dict of arguments by name"
        )
    return [Call((), made)]


def _from_config(config: Any, wanted: Any, batch: int, drawing: torch.Generator) -> dict[str, Tensor]:
    """Pixels and tokens, as a configuration of transformers describes them."""
    made = {}
    if "pixel_values" in wanted:
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", None) or _PIXELS
        height, width = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(vision, "num_channels", 3)
        made["pixel_values"] = torch.randn(batch, channels, height, width, generator=drawing)
    words = getattr(getattr(config, "text_config", config), "vocab_size", None)
    if "input_ids" in wanted and words:
        ids = torch.randint(words, (batch, _TOKENS), generator=drawing)
        made["input_ids"] = ids
        if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in wanted:
            made["decoder_input_ids"] = ids.clone()
    return made


def _real_size(net: nn.Module, size: tuple[int, ...]) -> tuple[int, ...]:
    """A configuration tells how a network is usually made; its first layers, how this one was."""
    first = next((module for module in net.modules() if isinstance(module, nn.Conv2d)), None)
    patches = getattr(getattr(net, "patch_embed", None), "img_size", None)
    channels = first.in_channels if first is not None and size[0] == 3 and first.in_channels < 3 else size[0]
    return (channels, *(patches if isinstance(patches, tuple) else size[1:]))
