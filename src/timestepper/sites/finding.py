"""The sites of a network: what adapters know, else what is discovered; and the user's choice among them."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from timestepper.errors import MismatchError, NoSitesError, TimestepperError, UnknownNameError, UnsupportedSiteError
from timestepper.reparam import trained
from timestepper.sites import blocks
from timestepper.sites.discovered import Discovery
from timestepper.sites.discovery import NotTaken, candidates, length
from timestepper.sites.example import NeedsExampleError, calls_of
from timestepper.sites.known import Site, Stage, find_stages, only_ours
from timestepper.sites.proof import Attach, prove
from timestepper.sites.stages import grouped
from timestepper.sites.trace import Trace
from timestepper.sites.twin import Call, FailedError, lean_twin, left_alone, twin, without_hooks

Patterns = str | Sequence[str] | None


def find(
    net: nn.Module, attach: Attach, example: Any = None, sites: Patterns | Discovery = None, exclude: Patterns = None
) -> tuple[tuple[Stage, ...], int]:
    """The stages of a network: those of adapters where they know one of its blocks, else what is discovered.

    And how many residual sums take no step size although the user has not chosen among them.
    """
    if isinstance(sites, Discovery):
        _refuse_another_s(net, sites)
        return _chosen(_stages_of(sites), None, exclude), 0
    known = _known(net)
    if not isinstance(known, TimestepperError):
        return _chosen(known, sites, exclude), 0
    if not only_ours(net):
        raise known
    try:
        found = search(net, attach, example)
    except NeedsExampleError:
        if isinstance(known, NoSitesError):
            raise
        hint = "or pass example=, what its forward takes, to have its branches discovered"
        raise UnsupportedSiteError(f"{known}; {hint}") from None
    left_out = found.left_out if sites is None and exclude is None else 0
    return _chosen(_stages_of(found), sites, exclude), left_out


def _known(net: nn.Module) -> Sequence[Stage] | NoSitesError | UnsupportedSiteError:
    """What adapters know, or why they know nothing: not raised, because another error may be the one to tell."""
    try:
        return find_stages(net)
    except (NoSitesError, UnsupportedSiteError) as error:
        return error.with_traceback(None)


def is_known(net: nn.Module) -> bool:
    """Whether adapters say where the sites of a network are."""
    return not isinstance(_known(net), TimestepperError) or not only_ours(net)


def _refuse_another_s(net: nn.Module, found: Discovery) -> None:
    """What was discovered in one network says nothing of another."""
    for site in (site for stage in found.stages for site in stage.sites):
        try:
            layers = [(net.get_submodule(entry.layer), entry.name) for entry in site.entries]
            described = sum(length(net, *each) for each in zip(site.convs, site.means, strict=True))
            fits = described == site.descriptor and all(trained(layer, name) is not None for layer, name in layers)
        except AttributeError:
            fits = False
        if not fits:
            raise MismatchError(
                f"{site.path} of the {found.network} that was discovered is not in this {type(net).__name__}; "
                "call timestepper.discover on this very network"
            )


def search(net: nn.Module, attach: Attach, example: Any = None) -> Discovery:
    """What :func:`timestepper.discover` gives. ``attach`` is how candidates get their step sizes, for the proof."""
    _refuse_without_numbers(net)
    *small, call = calls_of(net, example)
    large = sum(parameter.numel() for parameter in net.parameters()) > blocks.LARGE
    with left_alone():
        copy = (lean_twin(net) if large else twin(net)).eval()
        dtype = _dtype(net) if large else torch.float64
        try:
            trace, call = _first_that_runs(copy, small, call, dtype)
            found, refused = candidates(trace, copy)
            results = (
                blocks.prove_blocks(copy, call, dtype, found, attach) if large else prove(copy, call, found, attach)
            )
        except FailedError as error:
            if large or not _runs_as_it_is(net, call):
                raise
            raise MismatchError(
                f"{type(net).__name__} runs in its own precision, but as a copy in float64 or float32, on which sites "
                f"are proved, it fails{error.what}; name its branches by hand (docs/adapters.md)"
            ) from error.__cause__
    proved = {c.site.path: result for c, result in zip(found, results, strict=True) if isinstance(result, float)}
    wrong = [
        NotTaken(candidate.site.path, result, residual=True)
        for candidate, result in zip(found, results, strict=True)
        if isinstance(result, str)
    ]
    stages = grouped([candidate.site for candidate in found if candidate.site.path in proved])
    return Discovery(type(net).__name__, tuple(stages), proved, (*refused, *wrong))


def _refuse_without_numbers(net: nn.Module) -> None:
    for path, module in net.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise MismatchError(f"{path} is TorchScript, which nobody can look into; put the Python module there")
    for name, parameter in net.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise MismatchError(f"{name} has no shape yet; call the network once before its sites are looked for")
        if parameter.is_floating_point() and parameter.element_size() < 2:
            raise MismatchError(f"{name} is {parameter.dtype}, which no step size can enter; attach before quantising")
        if parameter.is_meta and hasattr(net.get_submodule(name.rpartition(".")[0]), "_hf_hook"):
            raise MismatchError(
                f"{name} is offloaded and comes back only when its layer runs (accelerate, device_map=); load the "
                "network onto one device, and offload timestepper.fold(net)"
            )
        if parameter.is_meta:
            raise MismatchError(
                f"{name} is on the meta device, without numbers to prove a site with; load the weights first, or "
                "discover the network on a CPU and give attach(sites=...) what was found"
            )


def _stages_of(found: Discovery) -> tuple[Stage, ...]:
    if found.stages:
        return found.stages
    reasons = [f"{sum_.path or 'the network'}: {sum_.reason}" for sum_ in found.refused]
    more = f"; and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    said = f"of {len(reasons)} sums none can take a step size ({'; '.join(reasons[:3])}{more})"
    raise NoSitesError(
        f"{found.network} has no residual branch: {said if reasons else 'its forward adds no two features'}; "
        "docs/discovery.md says which sums are taken, docs/adapters.md how to name blocks of your own"
    )


def _dtype(net: nn.Module) -> torch.dtype:
    return next((parameter.dtype for parameter in net.parameters() if parameter.is_floating_point()), torch.float32)


@torch.no_grad()
def _runs_as_it_is(net: nn.Module, call: Call) -> bool:
    with suppress(Exception):  # of a foreign module, which can raise anything
        call(without_hooks(net).eval(), _dtype(net))
        return True
    return False


def _first_that_runs(net: nn.Module, small: list[Call], call: Call, dtype: torch.dtype) -> tuple[Trace, Call]:
    for less in small:
        with suppress(MismatchError):
            return _traced(net, less, dtype), less
    return _traced(net, call, dtype), call


@torch.no_grad()
def _traced(net: nn.Module, call: Call, dtype: torch.dtype) -> Trace:
    """The graph of one forward of a copy."""
    with call.explained(net):
        args, kwargs = call.arguments(net, dtype)
    trace = Trace(net, (args, kwargs), precise=dtype == torch.float64)
    with call.explained(net, trace.places), trace.places.followed(), trace:
        net(*args, **kwargs)
    return trace


def _chosen(stages: Sequence[Stage], sites: Patterns, exclude: Patterns) -> tuple[Stage, ...]:
    """Those sites whose name, or that of an absorbing layer, fits a pattern of ``sites`` and none of ``exclude``."""
    every = [site for stage in stages for site in stage.sites]
    keep = {site.path for site in every if sites is None or _fits(site, _listed(sites))}
    keep -= {site.path for site in every if exclude is not None and _fits(site, _listed(exclude))}
    for pattern in (*_listed(sites), *_listed(exclude)):
        if not any(_fits(site, [pattern]) for site in every):
            known = ", ".join(site.path for site in every[:6])
            raise UnknownNameError(f"no site is called {pattern!r}; there are {known}{', …' if len(every) > 6 else ''}")
    if not keep:
        raise NoSitesError("sites= and exclude= leave no site; give others")
    kept = [replace(stage, sites=tuple(s for s in stage.sites if s.path in keep)) for stage in stages]
    return tuple(stage for stage in kept if stage.sites)


def _fits(site: Site, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (site.path, *site.last) for pattern in patterns)


def _listed(patterns: Patterns) -> list[str]:
    listed = [patterns] if isinstance(patterns, str) else [] if patterns is None else patterns
    wrong = [listed] if not isinstance(listed, Collection) else [each for each in listed if not isinstance(each, str)]
    if wrong:
        kind = type(wrong[0]).__name__
        raise UnknownNameError(f"sites= and exclude= take names of sites or patterns, in a list, not {kind}")
    return list(listed)
