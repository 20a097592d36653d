"""Where the residual branches of a network are: sites, stages and the registry of block classes.

An adapter says *where* the step size of a block enters; *how* it enters a layer is reparam.py's matter. Blocks are
registered by class or by dotted class name, so that no foreign library has to be imported to know it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby

from torch import nn

from timestepper.errors import NoSitesError, UnsupportedSiteError


@dataclass(frozen=True)
class Branch:
    """One residual branch, in module paths relative to its block; what a user's adapter returns."""

    convs: tuple[str, ...]  # layers whose averaged weights describe the branch
    last: tuple[str, ...]  # layers whose output rows the step size multiplies: usually one
    gate: str | None = None  # first layer of a squeeze-excite gate behind ``last``
    shortcut: str | None = None  # the layers beside the branch, where the shortcut has any
    reduction: int = 4  # the paper's r: 4 for basic blocks, 8 for bottlenecks


@dataclass(frozen=True)
class Site:
    """One residual branch of a network, in module paths of the whole network."""

    path: str
    channels: int
    descriptor: int
    convs: tuple[str, ...]
    last: tuple[str, ...]
    gate: str | None
    shortcut: str | None
    reduction: int


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
        _ADAPTERS[block if isinstance(block, str) else _dotted(block)] = adapter
        return adapter

    return remember


def find_stages(model: nn.Module) -> list[Stage]:
    """All stages of a network. Consecutive sites share a stage while container, width and descriptor stay the same."""
    sites = [
        _site(model, path, block, adapter)
        for path, block in model.named_modules()
        if (adapter := _ADAPTERS.get(_dotted(type(block)))) is not None
    ]
    found = [site for site in sites if site is not None]
    if not found:
        raise NoSitesError(
            f"{type(model).__name__} has no residual block that timestepper knows; it has {_block_names(model)}; "
            f"known are {', '.join(sorted(_ADAPTERS))}; register yours with timestepper.adapters.register"
        )
    runs = groupby(found, key=lambda site: (_container(site.path), site.channels, site.descriptor, site.reduction))
    stages = [Stage(key[0] or "blocks", tuple(run)) for key, run in runs]
    return _with_unique_names(stages)


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
    try:
        branch = adapter(block)
    except UnsupportedSiteError as error:
        raise UnsupportedSiteError(f"{path}: {error}") from None
    if branch is None:
        return None

    def whole(name: str) -> str:
        return f"{path}.{name}" if path else name

    weights = [_weight(model, path, whole(name)) for name in branch.convs]
    rows = {_weight(model, path, whole(name)).shape[0] for name in branch.last}
    if len(rows) != 1:
        raise UnsupportedSiteError(f"{path}: the last layers {branch.last} have {sorted(rows)} outputs, not one number")
    return Site(
        path=path,
        channels=rows.pop(),
        descriptor=sum(weight.shape[0] * weight[0, 0].numel() for weight in weights),
        convs=tuple(map(whole, branch.convs)),
        last=tuple(map(whole, branch.last)),
        gate=whole(branch.gate) if branch.gate else None,
        shortcut=whole(branch.shortcut) if branch.shortcut else None,
        reduction=branch.reduction,
    )


def _weight(model: nn.Module, block: str, path: str):
    try:
        weight = getattr(model.get_submodule(path), "weight", None)
    except AttributeError:
        weight = None
    if weight is None:
        raise UnsupportedSiteError(f"{block}: its adapter names {path}, which is no layer with a weight")
    return weight


def _with_unique_names(stages: list[Stage]) -> list[Stage]:
    names = [stage.name for stage in stages]
    return [
        stage if names.count(stage.name) == 1 else replace(stage, name=f"{stage.name}_{names[:i].count(stage.name)}")
        for i, stage in enumerate(stages)
    ]


def _block_names(model: nn.Module) -> str:
    kinds = sorted({type(module).__name__ for module in model.modules() if module is not model})
    return ", ".join(kinds) if kinds else "no submodules"


def _container(path: str) -> str:
    return path.rpartition(".")[0]


def downsampled(block: nn.Module) -> str | None:
    """The shortcut of a block as timm and torchvision build them."""
    return "downsample" if block.downsample is not None else None


def _dotted(block: type[nn.Module]) -> str:
    return f"{block.__module__}.{block.__qualname__}"
