"""The networks that are compared: plain, the paper word for word, ours, and what a user would pick instead.

A peer is a layer behind the last layer of every residual branch, where its authors put it: there the branch has its
final channels and has not met the shortcut yet.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import timestepper
from timestepper import names
from timestepper.controllers import parse
from timestepper.errors import UnknownNameError
from timestepper.sites import create_model, find_stages

DROP = 0.1  # a usual rate of stochastic depth


class ReZero(nn.Module):
    """Bachlechner et al. (2020): one trained scalar per branch, zero at the start."""

    def __init__(self, channels: int):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def _squeeze_excite(channels: int) -> nn.Module:
    from timm.layers import SEModule

    return SEModule(channels)


def _layer_scale(channels: int) -> nn.Module:
    from timm.layers import LayerScale2d

    return LayerScale2d(channels)


def _stochastic_depth(channels: int) -> nn.Module:
    from timm.layers import DropPath

    return DropPath(DROP)


PEERS: dict[str, Callable[[int], nn.Module]] = {
    "squeeze-excite": _squeeze_excite,
    "layer-scale": _layer_scale,
    "stochastic-depth": _stochastic_depth,
    "rezero": ReZero,
}


def behind_branches(model: nn.Module, make: Callable[[int], nn.Module]) -> nn.Module:
    """Put a new layer behind the last layer of every residual branch, in place."""
    for stage in find_stages(model):
        for site in stage.sites:
            for path in site.last:
                parent, _, name = path.rpartition(".")
                owner = model.get_submodule(parent)
                setattr(owner, name, nn.Sequential(getattr(owner, name), make(site.channels)))
    return model


def literal(model: nn.Module) -> nn.Module:
    """The paper word for word. It lives beside the benchmarks of a checkout and is not installed."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not (folder / "literal.py").exists():
        raise UnknownNameError(
            "the literal implementation is part of a source checkout (benchmarks/literal.py); "
            "run it there, or name other variants"
        )
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module("literal").make_literal(model, "lstm")


def build(variant: str, model: str, classes: int) -> nn.Module:
    """A new network: ``plain``, ``literal``, a peer, or a controller such as ``lstm``; always from the same seed.

    ``again`` is plain a second time: how much two builds of one network differ.
    """
    torch.manual_seed(0)
    network = create_model(model, num_classes=classes)
    if variant in ("plain", "again"):
        return network
    if variant == "literal":
        return literal(network)
    if variant in PEERS:
        return behind_branches(network, PEERS[variant])
    return timestepper.attach(network, variant)


def check_name(variant: str) -> None:
    """Fails with the known names."""
    own = ("plain", "again", "literal", *PEERS)
    if variant not in own:
        try:
            parse(variant)
        except UnknownNameError:
            known = ", ".join((*own, names.known()))
            raise UnknownNameError(f"unknown variant {variant!r}; known are {known}") from None
