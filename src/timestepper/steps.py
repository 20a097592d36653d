"""The step sizes of one network: computed where it is entered, given to its stepped layers, forgotten where it is left.

``attach`` leaves three things on a network: ``controllers`` as its first child, the stepped layers, and a subclass of
its own class whose forward is one pass of its :class:`Steps`.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from timestepper import fused, reparam
from timestepper.adapters import Site
from timestepper.controlled import Controlled, Controllers, Stepping, is_sharded
from timestepper.controllers.base import in_transform
from timestepper.errors import MismatchError, UnsupportedSiteError, WrappedModelError
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
    wrapper: nn.Module | None = None  # put around the child since attach

    @property
    def changed(self) -> bool:
        now = self.parent._modules.get(self.name)
        return now is not self.child and (now is None or now is not self.wrapper)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "wrapper": None}  # found again: a compiled one cannot be copied before what it wraps


class Steps(Controlled):
    """Built by :func:`timestepper.attach`, found by :func:`find`."""

    def __init__(self, root: nn.Module, stepping: Stepping):
        super().__init__(root, stepping)
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
        self._find_convs()
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
            self.begin()
        except BaseException:
            self.take_off()
            raise

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
                raise WrappedModelError(
                    f"{path} has become a {type(module).__name__} since attach; undo that before detach"
                )
        del self.root._modules[CONTROLLERS], self.root.__dict__[STEPS]
        for _, module in changed:
            make_plain(module)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "frozen": None}  # a copy made inside frozen_steps would never leave it

    # -- passes --------------------------------------------------------------------------------------------------------

    def around(self) -> list[Given] | None:
        """What the pass that this thread is in has given: a network may be entered again inside itself."""
        return None if torch.compiler.is_compiling() else self._here.givens

    def enter(self, root: nn.Module) -> None:
        """Begin a pass in this thread."""
        if torch.compiler.is_compiling():
            self._look_while_compiling()
            self._hand_out(self.givens())
            return
        self.refuse_changes(root)
        givens = self._here.givens = self.givens()
        self._hand_out(givens)
        if torch.is_grad_enabled() and not in_transform():  # with all weights frozen too: an input may want a gradient
            for place, given in zip(self._places, givens, strict=True):
                place.slot.keep(given)

    @torch.compiler.assume_constant_result
    def _look_while_compiling(self) -> bool:
        """Whenever the network is compiled, and so after every change; not traced."""
        self.refuse_changes(self.root)
        return True

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
            whole = [each for each in entered if not is_sharded(each[2])]
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

    def _find_convs(self) -> None:
        """The layers that describe sites, and the modules that they lie in."""
        paths = [conv for stage in self.stepping.stages for site in stage.sites for conv in site.convs]
        homes = {path.rpartition(".")[0]: self.root.get_submodule(path.rpartition(".")[0]) for path in paths}
        self._homes = [
            _Link(self.root.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2], home, path)
            for path, home in homes.items()
            if path
        ]
        self._convs = {path: (homes[path.rpartition(".")[0]]._modules, path.rpartition(".")[2]) for path in paths}

    def _describe_by(self, home: _Link) -> None:
        """Another part has taken the place of one that describes a site, or was put around it."""
        new = home.parent._modules.get(home.name)
        if new is not None and any(part is home.child for part in new.modules()):
            home.wrapper = new
            return
        for path in [path for path in self._convs if path.rpartition(".")[0] == home.path]:
            name = path.rpartition(".")[2]
            if new is None or name not in new._modules:
                raise MismatchError(
                    f"{home.path} was replaced by {type(new).__name__} since attach, which has no {name} for the "
                    "controller to read; call timestepper.detach(net) and attach again"
                )
            self._convs[path] = new._modules, name
            home.child = new

    def refuse_changes(self, root: nn.Module) -> None:
        """Whether every stepped layer is still in its place and still stepped; new norms are taken in."""
        if root is not self.root:
            raise WrappedModelError("DataParallel does not copy step sizes; use DistributedDataParallel instead")
        for link in self._links:
            if link.changed:
                self._take_in(link)
        for home in self._homes:
            if home.changed:
                self._describe_by(home)
        for place in self._places:
            if not is_stepped(place.layer):
                raise UnsupportedSiteError(f"{place.path} has changed its class since attach; detach and attach again")

    def _take_in(self, link: _Link) -> None:
        new = link.parent._modules.get(link.name)
        place = next((place for place in self._places if place.layer is link.child), None)
        around = new is not None and any(part is link.child for part in new.modules())
        shows = place is None and all(hasattr(new, name) for name in link.child._modules)
        if around and (shows or type(new).__name__ in _TRANSPARENT):
            link.wrapper = new
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
            f"{entry.parameter} is computed from other parameters since attach (pruned, normalised), which removes its "
            "step size; prune or normalise timestepper.fold(net) instead"
        )
    return found
