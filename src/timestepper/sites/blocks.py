"""Large networks are proved block by block: each block is copied to float64 by itself, with the input that it had."""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from timestepper.errors import MismatchError
from timestepper.sites.known import Site
from timestepper.sites.proof import Attach, Candidate, Sum, prove
from timestepper.sites.twin import Call, twin

LARGE = 500_000_000  # parameters; beyond this no copy of the whole is made


class Holder(nn.Module):
    """A block as a network: what a block itself owns can take a step there."""

    def __init__(self, block: nn.Module):
        super().__init__()
        self.block = block

    def forward(self, *args, **kwargs):
        return self.block(*args, **kwargs)


@torch.no_grad()
def prove_blocks(
    net: nn.Module, call: Call, dtype: torch.dtype, candidates: list[Candidate], attach: Attach
) -> list[float | str]:
    """As :func:`prove` does with the whole. The network runs once more, to see what its blocks are given."""
    homes = [_home(candidate) for candidate in candidates]
    given = _inputs(net, call, dtype, {home for home in homes if home})
    results: list[float | str] = ["it lies in no block that could be proved by itself"] * len(candidates)
    for home in dict.fromkeys(home for home in homes if home in given):
        inside = [number for number, other in enumerate(homes) if other == home]
        block = twin(Holder(net.get_submodule(home)))
        try:
            found = prove(block, given[home], [_within(candidates[number], home) for number in inside], attach)
        except MismatchError as error:
            found = [f"its block {home} cannot be proved by itself: {error}"] * len(inside)
        for number, result in zip(inside, found, strict=True):
            results[number] = result
    return results


def _home(candidate: Candidate) -> str:
    """The innermost module that has the sum and the layers that take the step."""
    paths = [sum_.key[0] for sum_ in candidate.sums] + [entry.layer for entry in candidate.site.entries]
    split = [path.split(".") for path in paths]
    common = [names[0] for names in zip(*split, strict=False) if len(set(names)) == 1]
    return ".".join(common)


def _inputs(net: nn.Module, call: Call, dtype: torch.dtype, paths: set[str]) -> dict[str, Call]:
    """What each module was called with the first time, before it could write into it."""
    given: dict[str, Call] = {}

    def remember(path: str) -> Any:
        return lambda module, args, kwargs: given.setdefault(path, Call(*copy.deepcopy((args, kwargs)))) and None

    handles = [
        net.get_submodule(path).register_forward_pre_hook(remember(path), with_kwargs=True) for path in sorted(paths)
    ]
    try:
        call(net, dtype)
    finally:
        for handle in handles:
            handle.remove()
    return given


def _within(candidate: Candidate, home: str) -> Candidate:
    """A candidate in the paths of a :class:`Holder` of its block."""

    def inner(path: str) -> str:
        return f"block{path.removeprefix(home)}"

    def moved(site: Site) -> Site:
        return replace(
            site,
            convs=tuple(inner(path) for path in site.convs if path.startswith(home)) or tuple(map(inner, site.last)),
            last=tuple(map(inner, site.last)),
            gate=inner(site.gate) if site.gate else None,
            readers=tuple(map(inner, site.readers)),
            entries=tuple(entry._replace(layer=inner(entry.layer)) for entry in site.entries),
            means=(),
        )

    first = Counter(sum_.key[0] for sum_ in candidate.sums)  # a block that runs again is seen the first time only
    sums = tuple(Sum((inner(s.key[0]), s.key[1]), s.operand, s.dim) for s in candidate.sums[: len(first)])
    return Candidate(moved(candidate.site), sums)
