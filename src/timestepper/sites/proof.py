"""Every site is proved: the attached network against the paper written down literally, on a float64 copy.

Random step sizes go through the attached copy, and in a second run each branch is multiplied by them at its sum. Sums
of the attached run are replaced by those of the literal one, so that each site is judged by itself.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from timestepper.errors import MismatchError
from timestepper.sites.known import Site, Stage
from timestepper.sites.stages import grouped
from timestepper.sites.trace import IN_PLACE, Places, Watching, function_name
from timestepper.sites.twin import Call, in_single

Attach = Callable[[nn.Module, tuple[Stage, ...]], Any]  # gives the Steps of a network with independent controllers
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
def prove(net: nn.Module, call: Call, candidates: list[Candidate], attach: Attach) -> list[float | str]:
    """For each candidate its error, or why it is refused. The network, in float64, is used up."""
    if not candidates:
        return []
    drawing = torch.Generator().manual_seed(1)
    logits = [torch.randn(c.site.channels, generator=drawing, dtype=torch.float64, device="cpu") for c in candidates]
    results: list[float | str] = [0.0] * len(candidates)
    told: set[tuple[str, int]] = set()
    usual: Counter[str] = Counter()
    for mode in ("eval", "train"):
        compared = _in_mode(mode, net, call, candidates, logits, attach, usual)
        if compared is None:
            continue
        results = [_judged(result, compared, c, mode) for result, c in zip(results, candidates, strict=True)]
        told |= compared.told
        usual = usual or compared.ran
        if compared.output > TOLERANCE:
            return _all(results, f"in {mode} mode the output is off by {compared.output:.1e} where every sum is right")
    blank = [not told.issuperset(sum_.key for sum_ in candidate.sums) for candidate in candidates]
    if any(blank):
        why = _nothing_to_compare(net)
        results = [
            why if isinstance(result, float) and empty else result for result, empty in zip(results, blank, strict=True)
        ]
    accepted = [number for number, result in enumerate(results) if isinstance(result, float)]
    if not accepted:
        return results
    error = _without_watching(net, call, [candidates[n] for n in accepted], [logits[n] for n in accepted], attach)
    if error > _SINGLE:
        return _all(results, f"under eval and no_grad the attached network is off by {error:.1e} from the folded one")
    return results


def _nothing_to_compare(net: nn.Module) -> str:
    odd = next((name for name, value in net.named_parameters() if not value.isfinite().all()), None)
    weights = f", or mend the weights: {odd} holds NaN or infinity" if odd else ""
    return f"its branch is zero, infinite or empty on the example, which proves nothing; pass another{weights}"


def _judged(before: float | str, compared: "Compared", candidate: Candidate, mode: str) -> float | str:
    if isinstance(before, str):
        return before
    # What train mode skips by chance keeps its proof in eval mode.
    errors = [compared.errors[sum_.key] for sum_ in candidate.sums if sum_.key in compared.errors]
    if mode == "eval" and len(errors) < len(candidate.sums):
        return "its sum does not run again in eval mode"
    if wrong := [error for error in errors if not error <= TOLERANCE]:
        return f"proved wrong: relative error {wrong[0]:.1e} in {mode} mode"
    return max([before, *errors])


def _all(results: list[float | str], reason: str) -> list[float | str]:
    return [reason if isinstance(result, float) else result for result in results]


@dataclass(frozen=True)
class Compared:
    """What came of a literal and an attached run."""

    errors: dict[tuple[str, int], float]
    told: set[tuple[str, int]]  # sums whose branch had numbers to compare
    output: float
    ran: Counter[str]  # how many sums, by module


def _in_mode(mode: str, net: nn.Module, *what: Any) -> Compared | None:
    """Where train mode takes more than an input (targets, say), with the layers alone in train mode."""
    if mode == "eval":
        return _compare(net.eval(), *what)
    for training in (lambda module: True, lambda module: not list(module.children())):
        for module in net.modules():
            module.training = training(module)
        with suppress(MismatchError):  # it ran in eval mode
            return _compare(net, *what)
    return None


def _compare(
    net: nn.Module, call: Call, candidates: list[Candidate], logits: list[Tensor], attach: Attach, usual: Counter[str]
) -> Compared:
    places = Places(net)
    sizes = {s.key: (s, torch.sigmoid(logit)) for c, logit in zip(candidates, logits, strict=True) for s in c.sums}
    before = [buffer.clone() for buffer in net.buffers()]  # all runs begin with the same statistics and iterates

    def literally(skipping: set[str]) -> tuple[Literal, Any]:
        literal = Literal(places, sizes, skipping)
        expected = _watched(literal, net, call)
        for buffer, value in zip(net.buffers(), before, strict=True):
            buffer.copy_(value)
        return literal, expected

    literal, expected = literally(set())
    if skipping := {path for path, sums in usual.items() if literal.seen[path] < sums}:
        literal, expected = literally(skipping)
    steps = _attached(net, candidates, logits, attach)
    try:
        checking = Checking(places, literal)
        with torch.enable_grad():  # as in training
            found = _watched(checking, net, call)
    finally:
        steps.take_off()
    told = {key for key, branch in literal.branches.items() if branch.isfinite().all() and branch.any()}
    return Compared(checking.errors, told, _distance(found, expected), literal.seen)


def _watched(mode: Watching, net: nn.Module, call: Call) -> Any:
    with mode.places.followed(), mode:
        return call(net, places=mode.places)


class Literal(Watching):
    """The paper: every branch times its step size, at the sum.

    Of a module that skips some of its sums nobody knows which ones ran: they are taken as they come.
    """

    def __init__(self, places: Places, sizes: dict[tuple[str, int], tuple[Sum, Tensor]], skipping: set[str]):
        super().__init__(places)
        self.sizes = {key: size for key, size in sizes.items() if key[0] not in skipping}
        self.skipping = skipping
        self.branches: dict[tuple[str, int], Tensor] = {}
        self.sums: dict[tuple[str, int], Tensor] = {}

    def add(self, key: tuple[str, int], func: Callable, args: tuple, kwargs: dict) -> Any:
        if key[0] in self.skipping:
            result = func(*args, **kwargs)
            self.sums[key] = result.clone()
            return result
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
        if key in self.literal.branches:
            branch = args[self.literal.sizes[key][0].operand]
            self.errors[key] = _error(branch, self.literal.branches[key])
        result = func(*args, **kwargs)
        result.detach().copy_(self.literal.sums[key])
        return result


def _attached(net: nn.Module, candidates: list[Candidate], logits: list[Tensor], attach: Attach) -> Any:
    """With the logits as step sizes."""
    number = {candidate.site.path: n for n, candidate in enumerate(candidates)}
    steps = attach(net, tuple(grouped([candidate.site for candidate in candidates])))
    for stage, controller in steps.controlled():
        cast(Tensor, controller.logit).data.copy_(torch.stack([logits[number[site.path]] for site in stage.sites]))
    return steps


def _without_watching(
    net: nn.Module, call: Call, candidates: list[Candidate], logits: list[Tensor], attach: Attach
) -> float:
    """A network that is watched takes no fast path: attached and folded must agree unwatched too."""
    in_single(net.eval())
    steps = _attached(net, candidates, logits, attach)
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
    leaves = tree_flatten(output)[0]
    inside = [tensor for leaf in leaves if is_dataclass(leaf) for tensor in _tensors(list(vars(leaf).values()))]
    found = [leaf for leaf in leaves if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())]
    return found + inside


def _error(found: Tensor, expected: Tensor) -> float:
    """Relative to the largest number."""
    if found.shape != expected.shape:
        return float("inf")
    same = (found == expected) | (found.isnan() & expected.isnan())
    if same.all():
        return 0.0
    size = expected[expected.isfinite()].abs()
    return ((found - expected)[~same].abs().max() / size.max()).item() if size.numel() else float("inf")
