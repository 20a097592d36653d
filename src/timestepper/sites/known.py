"""Where the residual branches of a network are: sites, stages and the registry of block classes.

An adapter says *where* the step size of a block enters; *how* it enters a layer is reparam.py's matter. Blocks are
registered by class or by dotted class name, so that no foreign library has to be imported to know it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from torch import Tensor, nn

from timestepper import reparam
from timestepper.errors import NoSitesError, UnsupportedSiteError
from timestepper.reparam import Entry, type_name


@dataclass(frozen=True)
class Branch:
    """One residual branch, in module paths relative to its block; what a user's adapter returns."""

    convs: tuple[str, ...]  # layers whose averaged weights describe the branch
    last: tuple[str, ...]  # layers whose output rows the step size multiplies: usually one
    gate: str | None = None  # first layer of a squeeze-excite gate behind ``last``
    reduction: int = 4  # the paper's r: 4 for basic blocks, 8 for bottlenecks
    reader: str | None = None  # parent of ``last`` that reads their weights and does not call them; "" is the block


@dataclass(frozen=True)
class Site:
    """One residual branch of a network, in module paths of the whole network."""

    path: str
    channels: int
    descriptor: int
    convs: tuple[str, ...]
    last: tuple[str, ...]
    gate: str | None
    reduction: int
    readers: tuple[str, ...] = ()  # modules that read the weights of ``last`` and do not call them
    entries: tuple[Entry, ...] = ()  # of a discovered site, which knows them; else they follow from last and gate
    means: tuple[tuple[int, ...], ...] = ()  # of a discovered site: over which dimensions each of convs is averaged


@dataclass(frozen=True)
class Stage:
    """The run of sites of one feature size, in depth order; it owns one controller."""

    name: str
    sites: tuple[Site, ...]

    @property
    def channels(self) -> int:
        return self.sites[0].channels

    @property
    def descriptor(self) -> int:
        return self.sites[0].descriptor

    @property
    def reduction(self) -> int:
        return self.sites[0].reduction


Adapter = Callable[[nn.Module], Branch | None]
_ADAPTERS: dict[str, Adapter] = {}


def register(block: type[nn.Module] | str) -> Callable[[Adapter], Adapter]:
    """Teach the library a block class: decorate a function from a block to its Branch (or None: no step size here).

    A subclass is a class of its own, because its forward may differ: register it too.
    """

    def remember(adapter: Adapter) -> Adapter:
        _ADAPTERS[block if isinstance(block, str) else f"{block.__module__}.{block.__qualname__}"] = adapter
        return adapter

    return remember


def only_ours(model: nn.Module) -> bool:
    """Whether every adapter that knows a block here is this library's: then discovery may overrule them."""
    known = {type_name(block) for block in model.modules()}
    return all(_ADAPTERS[name].__module__.startswith("timestepper.") for name in known if name in _ADAPTERS)


def find_stages(model: nn.Module) -> list[Stage]:
    """All stages of a network. Consecutive sites share a stage while container, width and descriptor stay the same."""
    sites = [
        _site(model, path, block, adapter)
        for path, block in model.named_modules()
        if (adapter := _ADAPTERS.get(type_name(block))) is not None
    ]
    found = [site for site in sites if site is not None]
    if not found:
        kinds = sorted({type(module).__name__ for module in model.modules() if module is not model})
        raise NoSitesError(
            f"{type(model).__name__} has no residual block that timestepper knows; it has "
            f"{', '.join(kinds) or 'no submodules'}; "
            f"known are {', '.join(sorted(_ADAPTERS))}; register yours with timestepper.adapters.register "
            "(docs/adapters.md)"
        )
    runs = groupby(found, key=lambda site: (_container(site.path), site.channels, site.descriptor, site.reduction))
    stages = [Stage(key[0] or "blocks", tuple(run)) for key, run in runs]
    return with_unique_names(stages)


def skipped_blocks(model: nn.Module, stages: list[Stage]) -> list[str]:
    """Modules that stand beside sites in the same container but are not sites themselves: worth a look."""
    paths = {site.path for stage in stages for site in stage.sites}
    containers = {_container(path) for path in paths} - {""}
    return [
        f"{path} ({type(module).__name__})"
        for path, module in model.named_modules()
        if path and path not in paths and _container(path) in containers
    ]


def _site(model: nn.Module, path: str, block: nn.Module, adapter: Adapter) -> Site | None:
    """What an adapter makes of a block; whatever is wrong with it is said with the block's path."""
    try:
        branch = adapter(block)
        return None if branch is None else _resolved(model, path, branch)
    except UnsupportedSiteError as error:
        raise UnsupportedSiteError(f"{path or type(block).__name__}: {error}") from None


def _resolved(model: nn.Module, path: str, branch: Branch) -> Site:
    """A branch in the paths of the whole network, all of which are there."""
    _check_form(branch)

    def whole(name: str) -> str:
        return f"{path}.{name}" if path else name

    convs, last = tuple(map(whole, branch.convs)), tuple(map(whole, branch.last))
    gate = whole(branch.gate) if branch.gate else None
    weights = [_weight(model, conv, averaged=True) for conv in convs]
    rows = {_weight(model, name).shape[0] for name in last}
    if len(rows) != 1:
        raise UnsupportedSiteError(f"the last layers {branch.last} have {sorted(rows)} outputs, not one number")
    for conv in convs:
        if conv not in last:  # a last layer must have a weight of its own in any case, which reparam.py says better
            reparam.refuse_computed(conv, _layer(model, conv))
    if gate is not None:
        _layer(model, gate)
    return Site(
        path=path,
        channels=rows.pop(),
        descriptor=sum(weight.shape[0] * weight[0, 0].numel() for weight in weights),
        convs=convs,
        last=last,
        gate=gate,
        reduction=branch.reduction,
        readers=() if branch.reader is None else (whole(branch.reader).removesuffix("."),),
    )


def _check_form(branch: Branch) -> None:
    """What can be said of a branch without looking at the network."""
    if not isinstance(branch, Branch):
        raise UnsupportedSiteError(
            f"its adapter returns a {type(branch).__name__}; return a timestepper.adapters.Branch, or None to leave "
            "the block without a step size"
        )
    for role, names in (("convs", branch.convs), ("last", branch.last)):
        # A string alone would be taken letter by letter.
        if not isinstance(names, tuple | list) or not names or not all(isinstance(name, str) for name in names):
            raise UnsupportedSiteError(
                f"its adapter gives {role}={names!r}; give a tuple of layer names, such as {role}=('conv1',)"
            )
    if not isinstance(branch.reduction, int) or branch.reduction < 1:
        raise UnsupportedSiteError(
            f"its adapter gives reduction={branch.reduction!r}; give a whole number of at least 1"
        )


def _layer(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise UnsupportedSiteError(
            f"its adapter names {path}, which is no layer; give names inside the block, None for what it does not have"
        ) from None


def _weight(model: nn.Module, path: str, averaged: bool = False) -> Tensor:
    """What a last layer, or one that describes the branch by its average over the inputs, must have."""
    layer = _layer(model, path)
    weight, kind = getattr(layer, "weight", None), type(layer).__name__
    if not isinstance(weight, Tensor):
        raise UnsupportedSiteError(
            f"its adapter names {path}, a {kind} without a weight; name a layer that has one, or give the class a "
            "property of that name"
        )
    if averaged and (weight.dim() < 2 or getattr(layer, "transposed", False)):
        raise UnsupportedSiteError(
            f"its adapter names {path} in convs, a {kind}, whose weight is not (outputs, inputs, ...); name layers "
            "like Conv1d, Conv2d, Conv3d or Linear"
        )
    return weight


def with_unique_names(stages: list[Stage]) -> list[Stage]:
    """Stages of one name are numbered, and then those that their controllers' ModuleDict could not tell apart."""
    stages = _numbered(stages, [stage.name for stage in stages])
    while (apart := _numbered(stages, [stage.name.replace(".", "_") for stage in stages])) != stages:
        stages = apart
    return stages


def _numbered(stages: list[Stage], names: list[str]) -> list[Stage]:
    """With numbers behind names that are there twice, or that a ModuleDict refuses: ``update``, say."""
    reserved = nn.ModuleDict()
    return [
        replace(stage, name=f"{stage.name}_{names[:i].count(name)}")
        if names.count(name) > 1 or hasattr(reserved, name)
        else stage
        for i, (stage, name) in enumerate(zip(stages, names, strict=True))
    ]


def _container(path: str) -> str:
    return path.rpartition(".")[0]
