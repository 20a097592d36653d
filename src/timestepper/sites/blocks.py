"""Large networks are proved block by block: each block is copied to float64 by itself, with the input that it had."""

import copy
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from timestepper.errors import MismatchError
from timestepper.sites.proof import Attach, Candidate, prove
from timestepper.sites.trace import Places, Watching
from timestepper.sites.twin import Call, twin

LARGE = 500_000_000  # parameters; beyond this no copy of the whole is made
MOST = LARGE  # that a block may have


class Holder(nn.Module):
    """A network that has one block of another, under the block's own path: what a block itself owns can take a step."""

    def __init__(self, path: str, block: nn.Module):
        super().__init__()
        self._path = path
        home: nn.Module = self
        *parents, name = path.split(".")
        for parent in parents:
            home.add_module(parent, nn.Module())
            home = home.get_submodule(parent)
        home.add_module(name, block)

    def forward(self, *args, **kwargs):
        return self.get_submodule(self._path)(*args, **kwargs)


@dataclass
class Home:
    """How a block was called the first time."""

    path: str
    call: Call
    sums: Counter[str]  # how many each module had run when the block was left

    def candidate(self, whole: Candidate) -> Candidate:
        """Without what is not in the block. One that runs again is seen the first time only."""
        site = whole.site
        convs = tuple(conv for conv in site.convs if f"{conv}.".startswith(f"{self.path}.") or not self.path)
        sums = tuple(sum_ for sum_ in whole.sums if sum_.key[1] < self.sums[sum_.key[0]])
        return Candidate(replace(site, convs=convs or site.last, means=()), sums)


@torch.no_grad()
def prove_blocks(
    net: nn.Module, call: Call, dtype: torch.dtype, candidates: list[Candidate], attach: Attach
) -> list[float | str]:
    """As :func:`prove` does with the whole. The network runs once more, to see what its blocks are given."""
    around = [_around(candidate) for candidate in candidates]
    called = _called(net, call, dtype, {path for paths in around for path in paths})
    homes = [next(path for path in paths if path in called) for paths in around]
    results: list[float | str] = [""] * len(candidates)
    for home in dict.fromkeys(homes):
        inside = [number for number, other in enumerate(homes) if other == home]
        found = _proved(net.get_submodule(home), called[home], [candidates[number] for number in inside], attach)
        for number, result in zip(inside, found, strict=True):
            results[number] = result
    return results


def _proved(block: nn.Module, home: Home, candidates: list[Candidate], attach: Attach) -> list[float | str]:
    if sum(parameter.numel() for parameter in block.parameters()) > MOST:
        reason = f"it lies in no block of less than {MOST / 1e6:.0f} million parameters that could be proved by itself"
        return [f"{reason}; put its sum and its branch into a module of their own"] * len(candidates)
    try:
        alone = Holder(home.path, block) if home.path else block
        return prove(twin(alone), home.call, [home.candidate(whole) for whole in candidates], attach)
    except MismatchError as error:
        return [f"its block {home.path} cannot be proved by itself: {error}"] * len(candidates)


def _around(candidate: Candidate) -> list[str]:
    """The modules that have the sum and the layers that take the step, innermost first; the last is the network."""
    paths = [sum_.key[0] for sum_ in candidate.sums] + [entry.layer for entry in candidate.site.entries]
    split = zip(*(path.split(".") for path in paths), strict=False)
    names = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, split)]
    return [".".join(names[:length]) for length in range(len(names), -1, -1)]


def _called(net: nn.Module, call: Call, dtype: torch.dtype, paths: set[str]) -> dict[str, Home]:
    """What each of the modules that ran was called with the first time, before it could write into it."""
    watching = Watching(Places(net), precise=False)
    found: dict[str, Home] = {}
    left: set[str] = set()

    def entered(path: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
        if path not in found:
            found[path] = Home(path, Call(*_copy((args, kwargs))), Counter())

    def leave(path: str, module: nn.Module, args: tuple, output: Any) -> None:
        if path not in left:
            left.add(path)
            found[path].sums = watching.seen.copy()

    with ExitStack() as hooks:
        for path in sorted(paths):
            module = net.get_submodule(path)
            hooks.enter_context(module.register_forward_pre_hook(partial(entered, path), with_kwargs=True))
            hooks.enter_context(module.register_forward_hook(partial(leave, path)))
        with watching.places.followed(), watching:
            call(net, dtype, watching.places)
    return found


def _copy(arguments: Any) -> Any:
    """Also of tensors that belong to a graph, which deepcopy refuses."""
    tensors = [value for value in tree_flatten(arguments)[0] if isinstance(value, Tensor)]
    return copy.deepcopy(arguments, {id(tensor): tensor.detach().clone() for tensor in tensors})
