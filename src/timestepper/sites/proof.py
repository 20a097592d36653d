"""Every site is proved: the attached network against the paper written down literally, on a float64 copy.

Random step sizes go through the attached copy, and in a second run each branch is multiplied by them at its sum. Sums
of the attached run are replaced by those of the literal one, so that each site is judged by itself.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from timestepper.adapters import Site
from timestepper.controllers import ControllerSpec
from timestepper.sites.stages import grouped
from timestepper.sites.trace import IN_PLACE, Places, Watching, function_name
from timestepper.sites.twin import Call, in_single, seed
from timestepper.steps import Stepping, Steps

TOLERANCE = 1e-10
_SINGLE = 1e-4  # for the run in float32, attached against folded: the same numbers, if no layer misses its step


@dataclass(frozen=True)
class Sum:
    """Where a branch enters the stream."""

    key: tuple[str, int]
    operand: int  # which of the two is the branch
    dim: int  # its channels


@dataclass(frozen=True)
class Candidate:
    """A site, not proved yet. A block that runs several times has several sums."""

    site: Site
    sums: tuple[Sum, ...]


@torch.no_grad()
def prove(net: nn.Module, call: Call, candidates: list[Candidate]) -> list[float | str]:
    """For each candidate its error, or why it is refused. The network, in float64, is used up."""
    if not candidates:
        return []
    drawing = torch.Generator().manual_seed(1)
    logits = [torch.randn(c.site.channels, generator=drawing, dtype=torch.float64) for c in candidates]
    results: list[float | str] = [0.0] * len(candidates)
    for mode in ("eval", "train"):
        compared = (
            _compare(net.eval(), call, candidates, logits)
            if mode == "eval"
            else _trained(net, call, candidates, logits)
        )
        if compared is None:
            continue
        errors, output = compared
        results = [_judged(result, error, mode) for result, error in zip(results, errors, strict=True)]
        if output > TOLERANCE:
            return _all(results, f"the network's output is off by {output:.1e} where every sum is right")
        if not any(isinstance(result, float) for result in results):
            return results
    accepted = [number for number, result in enumerate(results) if isinstance(result, float)]
    error = _without_watching(net, call, [candidates[n] for n in accepted], [logits[n] for n in accepted])
    if error > _SINGLE:
        return _all(results, f"under eval and no_grad the attached network is off by {error:.1e} from the folded one")
    return results


def _judged(before: float | str, error: float | None, mode: str) -> float | str:
    if isinstance(before, str):
        return before
    if error is None:
        return f"its sum does not run in {mode} mode as in the first run"
    if not error <= TOLERANCE:
        return f"proved wrong: relative error {error:.1e} in {mode} mode"
    return max(before, error)


def _all(results: list[float | str], reason: str) -> list[float | str]:
    return [reason if isinstance(result, float) else result for result in results]


def _trained(net: nn.Module, call: Call, candidates: list[Candidate], logits: list[Tensor]) -> "_Compared | None":
    """In train mode; where that takes more than an input (targets, say), with the layers alone in train mode."""
    for training in (lambda module: True, lambda module: not list(module.children())):
        for module in net.modules():
            module.training = training(module)
        with suppress(Exception):  # of a foreign network, which can raise anything; it ran in eval mode
            return _compare(net, call, candidates, logits)
    return None


_Compared = tuple[list[float | None], float]


def _compare(net: nn.Module, call: Call, candidates: list[Candidate], logits: list[Tensor]) -> _Compared:
    """The error of each candidate and that of the output."""
    places = Places(net)
    sizes = {s.key: (s, torch.sigmoid(logit)) for c, logit in zip(candidates, logits, strict=True) for s in c.sums}
    literal = Literal(places, sizes)
    expected = _watched(literal, net, call)
    steps = _attached(net, candidates, logits)
    try:
        checking = Checking(places, literal)
        with torch.enable_grad():  # as in training
            found = _watched(checking, net, call)
    finally:
        steps.take_off()
    errors = checking.errors
    by_site = [
        None if any(s.key not in errors for s in c.sums) else max(errors[s.key] for s in c.sums) for c in candidates
    ]
    return by_site, _distance(found, expected)


def _watched(mode: Watching, net: nn.Module, call: Call) -> Any:
    seed()
    with mode.places.followed(), mode:
        return call(net)


class Literal(Watching):
    """The paper: every branch times its step size, at the sum."""

    def __init__(self, places: Places, sizes: dict[tuple[str, int], tuple[Sum, Tensor]]):
        super().__init__(places)
        self.sizes = sizes
        self.branches: dict[tuple[str, int], Tensor] = {}
        self.sums: dict[tuple[str, int], Tensor] = {}

    def add(self, key: tuple[str, int], func: Callable, args: tuple, kwargs: dict) -> Any:
        if key not in self.sizes:
            return func(*args, **kwargs)
        place, dt = self.sizes[key]
        branch = args[place.operand]
        shape = [1] * branch.dim()
        shape[place.dim] = -1
        scaled = branch * dt.to(branch.device).reshape(shape)
        self.branches[key] = scaled.clone()
        if place.operand == 0 and function_name(func) in IN_PLACE:
            branch.copy_(scaled)  # others may hold this very tensor
        else:
            args = tuple(scaled if number == place.operand else arg for number, arg in enumerate(args))
        result = func(*args, **kwargs)
        self.sums[key] = result.clone()
        return result


class Checking(Watching):
    """The attached network: what comes as a branch is compared, and the literal sum goes on."""

    def __init__(self, places: Places, literal: Literal):
        super().__init__(places)
        self.literal = literal
        self.errors: dict[tuple[str, int], float] = {}

    def add(self, key: tuple[str, int], func: Callable, args: tuple, kwargs: dict) -> Any:
        if key not in self.literal.sums:
            return func(*args, **kwargs)
        branch, expected = args[self.literal.sizes[key][0].operand], self.literal.branches[key]
        self.errors[key] = _error(branch, expected)
        result = func(*args, **kwargs)
        result.detach().copy_(self.literal.sums[key])
        return result


def _attached(net: nn.Module, candidates: list[Candidate], logits: list[Tensor]) -> Steps:
    """With the logits as step sizes."""
    number = {candidate.site.path: n for n, candidate in enumerate(candidates)}
    stages = grouped([candidate.site for candidate in candidates])
    steps = Steps(net, Stepping(tuple(stages), ControllerSpec("independent"), None, "mean", True))
    for stage, controller in steps.controlled():
        cast(Tensor, controller.logit).data.copy_(torch.stack([logits[number[site.path]] for site in stage.sites]))
    return steps


def _without_watching(net: nn.Module, call: Call, candidates: list[Candidate], logits: list[Tensor]) -> float:
    """A network that is watched takes no fast path: attached and folded must agree unwatched too."""
    in_single(net.eval())
    steps = _attached(net, candidates, logits)
    try:
        found, effective = call(net, torch.float32), steps.effective_parameters()
    finally:
        steps.take_off()
    for name, value in effective.items():
        layer, _, own = name.rpartition(".")
        getattr(net.get_submodule(layer), own).copy_(value)
    return _distance(found, call(net, torch.float32))


def _distance(found: Any, expected: Any) -> float:
    pairs = zip(_tensors(found), _tensors(expected), strict=False)
    return max((_error(a, b) for a, b in pairs), default=0.0)


def _tensors(output: Any) -> list[Tensor]:
    """All that are in an output: tuples, dictionaries, dataclasses."""
    return [value for value in tree_flatten(output)[0] if isinstance(value, Tensor) and value.is_floating_point()]


def _error(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest number."""
    if found.shape != expected.shape:
        return float("inf")
    if torch.equal(found, expected) or not expected.numel():
        return 0.0
    same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(same, torch.zeros_like(found), (found - expected).abs()).max()
    return (difference / expected[expected.isfinite()].abs().max()).item()
