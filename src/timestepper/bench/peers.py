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


class ReZero(nn.Module):
    """Bachlechner et al. (2020): one trained scalar per branch, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def _timm(layer: str, *options: float) -> nn.Module:
    from timm import layers

    return getattr(layers, layer)(*options)


PEERS: dict[str, Callable[[int], nn.Module]] = {  # by channels
    "squeeze-excite": lambda channels: _timm("SEModule", channels),
    "layer-scale": lambda channels: _timm("LayerScale2d", channels),
    "stochastic-depth": lambda channels: _timm("DropPath", 0.1),  # a usual rate
    "rezero": lambda channels: ReZero(),
}
OWN = ("plain", "again", "literal", *PEERS)


def build(variant: str, model: str, classes: int) -> nn.Module:
    """A new network: ``plain``, ``literal``, a peer, or a controller such as ``lstm``; always from the same seed.

    ``again`` is plain a second time: how much two builds of one network differ.
    """
    torch.manual_seed(0)
    network = create_model(model, num_classes=classes)
    if variant in ("plain", "again"):
        return network
    if variant == "literal":
        return _literal(network)
    if variant not in PEERS:
        return timestepper.attach(network, variant)
    for site in (site for stage in find_stages(network) for site in stage.sites):
        for path in site.last:
            layer = network.get_submodule(path)
            network.set_submodule(path, nn.Sequential(layer, PEERS[variant](site.channels)))
    return network


def _literal(model: nn.Module) -> nn.Module:
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


def check_name(variant: str) -> None:
    """Fails with the known names."""
    try:
        if variant not in OWN:
            parse(variant)
    except UnknownNameError:
        known = ", ".join((*OWN, names.known()))
        raise UnknownNameError(f"unknown variant {variant!r}; known are {known}") from None
