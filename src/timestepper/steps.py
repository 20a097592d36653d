"""The step sizes of one network: computed where it is entered, given to its stepped layers, forgotten where it is left.

``attach`` leaves three things on a network: ``controllers`` as its first child, the stepped layers, and a subclass of
its own class whose forward is one pass of its :class:`Steps`.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn

from timestepper import equations, fused, reparam
from timestepper.adapters import Site, Stage
from timestepper.controllers import Controller, ControllerSpec, StageShape
from timestepper.controllers.base import at_least_float32, by_stage, in_one
from timestepper.errors import MismatchError, StepSizeError, UnsupportedSiteError, WrappedModelError
from timestepper.reparam import Entry
from timestepper.stepped import (
    CONTROLLERS,
    STEPS,
    Given,
    Slot,
    is_stepped,
    make_plain,
    make_reader,
    make_stepped,
    root_class,
)

_TRANSPARENT = {"CheckpointWrapper", "OptimizedModule"}  # put around a layer, they run it as it is


class Controllers(nn.ModuleDict):
    """One controller for every stage. As a child of the network it is no layer: what goes in comes out.

    ``fused`` chooses the kernels: None where they can run, True or False to insist.
    """

    fused: bool | None = None
    dt0: Tensor  # the first step sizes, where there is a start to count from

    def forward(self, *inputs):
        return inputs[0] if len(inputs) == 1 else inputs


@dataclass(frozen=True)
class Stepping:
    """What is attached, as a user asked for it."""

    stages: tuple[Stage, ...]
    controller: ControllerSpec
    reduction: int | None
    descriptor: str
    descriptor_gradient: bool
    start: float | None = None  # where step sizes begin; None: where their controller does

    def shape(self, stage: Stage) -> StageShape:
        length = stage.descriptor + (self.descriptor == "visible")
        return StageShape(len(stage.sites), stage.channels, length, self.reduction or stage.reduction)


class _Here(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.givens: list[Given] | None = None  # of the pass that it is in

    def __reduce__(self):
        return _Here, ()


@dataclass
class _Place:
    """A stepped layer in its network."""

    path: str
    layer: nn.Module
    entries: tuple[Entry, ...]
    sites: dict[str, int]  # by the name of a parameter: which of all sites of the network its step size belongs to

    @property
    def slot(self) -> Slot:
        """The layer's own: a copy of the layer has another."""
        return cast(Slot, self.layer._slot)


@dataclass
class _Link:
    """A module that is the child of another, as it was at the last look."""

    parent: nn.Module
    name: str
    child: nn.Module
    path: str


class Steps:
    """Built by :func:`timestepper.attach`, found by :func:`find`."""

    def __init__(self, root: nn.Module, stepping: Stepping):
        self.root = root
        self.stepping = stepping
        self.frozen: list[Given] | None = None
        self._here = _Here()
        sites = [site for stage in stepping.stages for site in stage.sites]
        by_site = [site.entries or reparam.entries(root, site.last, site.gate) for site in sites]
        reparam.refuse_shared(root, by_site)
        controllers = Controllers(
            {
                stage.name.replace(".", "_"): stepping.controller.build(stepping.shape(stage))
                for stage in stepping.stages
            }
        )
        self._convs = {
            conv: (root.get_submodule(conv.rpartition(".")[0])._modules, conv.rpartition(".")[2])
            for stage in stepping.stages
            for site in stage.sites
            for conv in site.convs
        }
        reference = self._weight(stepping.stages[0].sites[0].convs[0])
        controllers.to(device=reference.device, dtype=torch.promote_types(reference.dtype, torch.float32))
        controllers.train(root.training)
        original: Any = type(root)
        own_class = root_class(original)  # which a class may forbid
        # From here on nothing can fail.
        self._insert(controllers)
        self._places: list[_Place] = []
        for path, own in _by_layer(by_site).items():
            layer, entries = root.get_submodule(path), tuple(entry for entry, _ in own)
            make_stepped(layer, entries, partial(self.alone, len(self._places)))
            self._places.append(_Place(path, layer, entries, {entry.name: site for entry, site in own}))
        self._readers = _readers(sites, self._places)
        for path, names in self._readers.items():
            make_reader(root.get_submodule(path), names)
        self._links = self._find_links()
        ends = [0, *accumulate(stage.channels for stage in stepping.stages for _ in stage.sites)]
        self._spans = list(pairwise(ends))  # of every site, among the step sizes of all sites
        root.__dict__[STEPS] = self
        root.__class__ = own_class
        try:
            self._begin()
        except BaseException:
            self.take_off()
            raise

    @torch.no_grad()
    def _begin(self) -> None:
        """Look at the first step sizes, which a start is counted from: the branch runs with start * dt / dt0."""
        with self.no_autocast():
            for stage, controller in self.controlled():
                found, wanted = controller(self.descriptors(stage, controller)), (len(stage.sites), stage.channels)
                if tuple(found.shape) != wanted:
                    raise StepSizeError(
                        f"{type(controller).__name__} gives step sizes of shape {tuple(found.shape)} for {stage.name}, "
                        f"which has {wanted[0]} sites of {wanted[1]} channels; return {wanted}"
                    )
            if self.stepping.start is not None:
                first = self._from_controllers(self.controlled())
                if not first.is_meta and not (first.isfinite() & (first != 0)).all():
                    raise StepSizeError("a first step size is 0 or no number, which start= divides by; leave start out")
                self.controllers.register_buffer("dt0", first.clone())

    def _insert(self, controllers: Controllers) -> None:
        """As the first child: who calls the children of a network one after the other begins with what does nothing."""
        children = dict(self.root._modules)
        self.root._modules.clear()
        self.root._modules.update({CONTROLLERS: controllers, **children})

    def take_off(self) -> None:
        """Leave nothing behind."""
        readers = [(path, self.root.get_submodule(path)) for path in self._readers]
        changed = [("the network", self.root), *readers, *((place.path, place.layer) for place in self._places)]
        for path, module in changed:
            if "_original" not in vars(type(module)):
                raise WrappedModelError(f"{path} is a {type(module).__name__} since attach; undo that before detach")
        del self.root._modules[CONTROLLERS], self.root.__dict__[STEPS]
        for _, module in changed:
            make_plain(module)

    # -- passes --------------------------------------------------------------------------------------------------------

    def around(self) -> list[Given] | None:
        """What the pass that this thread is in has given: a network may be entered again inside itself."""
        return None if torch.compiler.is_compiling() else self._here.givens

    def enter(self, root: nn.Module) -> None:
        """Begin a pass in this thread."""
        if torch.compiler.is_compiling():
            self._hand_out(self.givens())
            return
        self.refuse_changes(root)
        givens = self._here.givens = self.givens()
        self._hand_out(givens)
        if givens[0].graded:
            for place, given in zip(self._places, givens, strict=True):
                place.slot.keep(given)

    def leave(self, around: list[Given] | None) -> None:
        """End it, however it went; twice does no harm."""
        if not torch.compiler.is_compiling():
            self._here.givens = around
        self._hand_out(around)

    def _hand_out(self, givens: list[Given] | None) -> None:
        for number, place in enumerate(self._places):
            place.slot.cell.given = None if givens is None else givens[number]

    def alone(self, number: int) -> Given:
        """What a layer runs with that is called by itself."""
        if self.frozen is not None:
            return self.frozen[number]
        spans: dict[str, tuple[int, int]] = {}
        needed, first, end = [], 0, 0
        for stage, controller in self.controlled():
            rows = {name: site - first for name, site in self._places[number].sites.items()}
            inside = {name: end + row * stage.channels for name, row in rows.items() if 0 <= row < len(stage.sites)}
            if inside:
                needed.append((stage, controller))
                spans |= {name: (begin, begin + stage.channels) for name, begin in inside.items()}
                end += len(stage.sites) * stage.channels
            first += len(stage.sites)
        with self.no_autocast():
            return Given(self._flat(needed), spans, {}, False)

    # -- what is computed ----------------------------------------------------------------------------------------------

    def givens(self) -> list[Given]:
        """What every stepped layer runs with, in order."""
        if self.frozen is not None:
            return self.frozen
        with self.no_autocast():
            flat = self._flat(self.controlled())
            entered = [
                (place, entry, _trained(place.layer, entry)) for place in self._places for entry in place.entries
            ]
            whole = [each for each in entered if not _sharded(each[2])]
            made = self._made([raw for _, _, raw in whole], whole, flat)
        graded = flat.requires_grad or any(effective.requires_grad for effective in made)
        by_path: dict[str, dict[str, tuple[Tensor, Tensor]]] = {place.path: {} for place in self._places}
        for (place, entry, raw), effective in zip(whole, made, strict=True):
            by_path[place.path][entry.name] = raw, effective
        return [Given(flat, self._spans_of(place), by_path[place.path], graded) for place in self._places]

    def _spans_of(self, place: _Place) -> dict[str, tuple[int, int]]:
        return {name: self._spans[site] for name, site in place.sites.items()}

    def _made(self, raws: list[Tensor], whole: list[tuple[_Place, Entry, Tensor]], flat: Tensor) -> Sequence[Tensor]:
        choice = self.controllers.fused
        entries, sites = [entry for _, entry, _ in whole], [place.sites[entry.name] for place, entry, _ in whole]
        plain = all(entry.plain for entry in entries)
        if raws and plain and choice is not False and fused.scales(raws, flat, insist=choice is True):
            return fused.scale(raws, flat, [self._spans[site][0] for site in sites])
        sizes = [row for stage in self.by_stage(flat) for row in stage.unbind()]
        return reparam.effective(entries, raws, [sizes[site] for site in sites])

    def effective_parameters(self) -> dict[str, Tensor]:
        """The parameters that the network runs with, where they differ from the trained ones."""
        found = {}
        for place, given in zip(self._places, self.givens(), strict=True):
            for entry in place.entries:
                if entry.name not in given.made:
                    raise WrappedModelError(
                        f"{entry.parameter} is sharded; load the full state dict into an attached network that is not"
                    )
                found[entry.parameter] = given.made[entry.name][1]
        return found

    def step_sizes(self) -> dict[str, Tensor]:
        """By stage, (L, C)."""
        with self.no_autocast():
            found = self.by_stage(self._flat(self.controlled()))
        return {stage.name: dt for stage, dt in zip(self.stepping.stages, found, strict=True)}

    @property
    def controllers(self) -> Controllers:
        return cast(Controllers, self.root._modules[CONTROLLERS])

    def controlled(self) -> list[tuple[Stage, Controller]]:
        """Each stage with the controller that it owns."""
        return list(zip(self.stepping.stages, cast(Iterable[Controller], self.controllers.values()), strict=True))

    def by_stage(self, flat: Tensor) -> list[Tensor]:
        """Step sizes of each stage, (L, C)."""
        return by_stage(flat, [(len(stage.sites), stage.channels) for stage in self.stepping.stages])

    def _flat(self, controlled: list[tuple[Stage, Controller]]) -> Tensor:
        """Step sizes of all sites of some stages, one after the other."""
        found = self._from_controllers(controlled)
        if self.stepping.start is None:
            return found
        names = [stage.name for stage in self.stepping.stages]
        whole = dict(zip(names, self.by_stage(self.controllers.dt0), strict=True))
        first = in_one(whole[stage.name] for stage, _ in controlled)
        return found / first * self.stepping.start  # exactly the start, as long as found is first

    def _from_controllers(self, controlled: list[tuple[Stage, Controller]]) -> Tensor:
        choice = self.controllers.fused
        if choice or (choice is None and self.stepping.controller.reads_weights):
            stages, controllers = zip(*controlled, strict=True)
            weights = [weight for stage in stages for site in stage.sites for weight in self._weights(site)]
            if fused.fits(weights, controllers, insist=choice is True):
                described = fused.describe(weights, gradient=self.stepping.descriptor_gradient)
                if self.stepping.descriptor == "visible":
                    rows = by_stage(described, [(len(stage.sites), stage.descriptor) for stage in stages])
                    described = in_one(map(equations.visible_descriptor, rows))
                return fused.step_sizes(described, controllers)
        return in_one(controller(self.descriptors(stage, controller)) for stage, controller in controlled)

    def descriptors(self, stage: Stage, controller: Controller) -> Tensor:
        """What describes a stage, (L, D) in float32 or better; empty where the controller reads no weights."""
        if not controller.reads_weights:
            return at_least_float32(self._weight(stage.sites[0].convs[0]).new_empty(0))
        weights = map(self._weights, stage.sites)
        rows = [torch.cat([_gathered(equations.descriptor(at_least_float32(w))) for w in site]) for site in weights]
        stacked = torch.stack(rows)
        if self.stepping.descriptor == "visible":
            stacked = equations.visible_descriptor(stacked)
        return stacked if self.stepping.descriptor_gradient else stacked.detach()

    def _weights(self, site: Site) -> list[Tensor]:
        """What describes a site, each with its outputs first and its inputs second."""
        found = [self._weight(conv) for conv in site.convs]
        return [_outputs_first(w, dims) for w, dims in zip(found, site.means, strict=True)] if site.means else found

    def _weight(self, conv: str) -> Tensor:
        """Not get_parameter: a parametrised weight, or that of a LoRA layer, is none."""
        if torch.compiler.is_compiling():
            return attrgetter(f"{conv}.weight")(self.root)
        siblings, name = self._convs[conv]  # in a tenth of the time
        layer = cast(nn.Module, siblings[name])
        weight = layer._parameters.get("weight")
        return cast(Tensor, layer.weight) if weight is None else weight

    def no_autocast(self) -> AbstractContextManager:
        """Off on the network's device; on the meta device, where nothing is computed, there is none to switch off."""
        kind = self._weight(self.stepping.stages[0].sites[0].convs[0]).device.type
        on = kind != "meta" and torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if on else nullcontext()

    # -- what was done to the network since ----------------------------------------------------------------------------

    def _find_links(self) -> list[_Link]:
        """From the network to its stepped layers."""
        links: dict[str, _Link] = {}
        for place in self._places:
            parent, path = self.root, ""
            for name in place.path.split("."):
                path = f"{path}.{name}" if path else name
                links[path] = _Link(parent, name, parent._modules[name], path)  # type: ignore[arg-type]
                parent = links[path].child
        return list(links.values())

    def refuse_changes(self, root: nn.Module) -> None:
        """Whether every stepped layer is still in its place and still stepped; new norms are taken in."""
        if root is not self.root:
            raise WrappedModelError("torch's DataParallel copies no step sizes; use DistributedDataParallel instead")
        for link in self._links:
            if link.parent._modules.get(link.name) is not link.child:
                self._take_in(link)
        for place in self._places:
            if not is_stepped(place.layer):
                raise UnsupportedSiteError(f"{place.path} has got another class since attach; attach again")

    def _take_in(self, link: _Link) -> None:
        new = link.parent._modules.get(link.name)
        place = next((place for place in self._places if place.layer is link.child), None)
        around = new is not None and any(part is link.child for part in new.modules())
        shows = place is None and all(hasattr(new, name) for name in link.child._modules)
        if around and (shows or type(new).__name__ in _TRANSPARENT):
            link.child = cast(nn.Module, new)
            return
        if place is not None and new is not None and reparam.replaces(new, place.layer):
            make_plain(place.layer)
            place.layer = link.child = new
            make_stepped(new, place.entries, partial(self.alone, self._places.index(place)))
            return
        was, which = (
            ("wrapped in", "hides its layers") if around else ("replaced by", "would run without its step size")
        )
        raise MismatchError(
            f"{link.path} was {was} {type(new).__name__} since attach, which {which}; call timestepper.detach(net) "
            "first and attach afterwards, or change timestepper.fold(net)"
        )


def _by_layer(by_site: list[tuple[Entry, ...]]) -> dict[str, list[tuple[Entry, int]]]:
    """The entries of each layer, with their sites: a block may hold the scales of two of its branches."""
    found: dict[str, list[tuple[Entry, int]]] = {}
    for number, entries in enumerate(by_site):
        for entry in entries:
            found.setdefault(entry.layer, []).append((entry, number))
    return found


def _readers(sites: list[Site], places: list[_Place]) -> dict[str, tuple[str, ...]]:
    """Modules that read the weights of stepped layers inside them, with the names of these."""
    paths = dict.fromkeys(path for site in sites for path in site.readers)
    return {
        path: tuple(p.path.removeprefix(f"{path}.") for p in places if not path or p.path.startswith(f"{path}."))
        for path in paths
    }


def find(module: nn.Module) -> Steps | None:
    """The steps of a network, None of one that has none."""
    return module.__dict__.get(STEPS)


def _trained(layer: nn.Module, entry: Entry) -> Tensor:
    found = reparam.trained(layer, entry.name)
    if found is None:
        raise UnsupportedSiteError(
            f"{entry.parameter} is computed from other parameters since attach (pruned, normalised), which takes its "
            "step size away; do that to timestepper.fold(net)"
        )
    return found


def _outputs_first(weight: Tensor, averaged: tuple[int, ...]) -> Tensor:
    """Transposed, where inputs come first; a depthwise kernel, which has one input, averaged over space."""
    if averaged == (0,):
        return weight.transpose(0, 1)
    return at_least_float32(weight).flatten(2).mean(2) if len(averaged) > 1 else weight


def _sharded(tensor: Tensor) -> bool:
    """By name: torch.distributed takes long to load."""
    return type(tensor).__name__ == "DTensor"


def _gathered(described: Tensor) -> Tensor:
    """The whole of a descriptor whose weight is sharded; every rank adds its part to its gradient."""
    if not _sharded(described):
        return described
    from torch.distributed.tensor import Partial

    return described.full_tensor(grad_placements=[Partial("avg")] * described.device_mesh.ndim)  # type: ignore[attr-defined]
