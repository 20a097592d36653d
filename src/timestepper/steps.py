"""The step sizes of one network: computed where it is entered, given to its stepped layers, forgotten where it is left.

``attach`` leaves three things on a network: ``controllers`` as its first child, the stepped layers, and a subclass of
its own class whose forward is one pass of its :class:`Steps`.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from timestepper import kernels, reparam
from timestepper.controlled import Controlled, Controllers, End, Stepping
from timestepper.controllers.base import in_transform, is_sharded
from timestepper.errors import MismatchError, NotAttachedError, WrappedModelError
from timestepper.links import Links
from timestepper.looking import held_still
from timestepper.reparam import Entry
from timestepper.root import CONTROLLERS, STEPS, root_class
from timestepper.sites import Site
from timestepper.stepped import Given, Taken, is_stepped, make_plain, make_reader, make_stepped


class _Here(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.givens: list[Given] | None = None  # of the pass that it is in

    def __reduce__(self):
        return _Here, ()


class Steps(Controlled):
    """Built by :func:`timestepper.attach`, found by :func:`find`."""

    def __init__(self, root: nn.Module, stepping: Stepping):
        stepping = replace(stepping, normed=any(map(reparam.is_norm, root.modules())))
        super().__init__(root, stepping)
        self.frozen: list[Given] | None = None
        self.freezing: dict[object, list[Given]] = {}  # of every frozen_steps that holds
        self._here = _Here()
        sites = [site for stage in stepping.stages for site in stage.sites]
        by_site = [site.entries or reparam.entries(root, site.last, site.gate) for site in sites]
        reparam.refuse_shared(root, by_site)
        ends = iter([_end(root, entries[0]) for entries in by_site])
        self.reads = tuple(read._replace(ends=tuple(next(ends) for _ in read.sites)) for read in self.reads)
        shapes = {stage.name.replace(".", "_"): stepping.shape(stage) for stage in stepping.stages}
        controllers = Controllers(stepping.controller, shapes)
        reference = self._weight(root, stepping.stages[0].sites[0].convs[0])
        controllers.to(device=reference.device, dtype=torch.promote_types(reference.dtype, torch.float32))
        controllers.train(root.training)
        taken = self._taken(by_site)
        for path in taken:
            if "forward" in vars(root.get_submodule(path)):
                raise WrappedModelError(
                    f"{path} has a forward of its own (a hook of accelerate, a patch), which would run without its "
                    "step size; attach first, and prepare, dispatch or patch the result"
                )
        original: Any = type(root)
        own_class = root_class(original)  # which a class may forbid
        self._takes = tuple((path, tuple(own.items())) for path, own in taken.items())
        readers = _readers(sites, tuple(taken))
        self._readers = {path: root.get_submodule(path) for path in readers}  # also where they have moved since
        layers, children = {path: root.get_submodule(path) for path in taken}, dict(root._modules)
        try:  # from here on only Ctrl-C, and a controller of the user's
            self._insert(controllers)
            for path, own in taken.items():
                make_stepped(layers[path], own, self.alone)
            for path, names in readers.items():
                make_reader(self._readers[path], names)
            self.links = Links(root, layers, self._convs)
            root.__dict__[STEPS] = self
            root.__class__ = own_class
            self.begin()
        except BaseException:
            root._modules.update(children)  # where it hit in the middle of _insert
            self._strip([root, *self._readers.values(), *layers.values()])
            raise

    def _insert(self, controllers: Controllers) -> None:
        """As the first child: who calls the children of a network one after the other begins with what does nothing."""
        children = dict(self.root._modules)
        self.root._modules.clear()
        self.root._modules.update({CONTROLLERS: controllers, **children})

    def _taken(self, by_site: list[tuple[Entry, ...]]) -> dict[str, dict[str, Taken]]:
        """By layer and by name: a block may hold the scales of two of its branches."""
        found: dict[str, dict[str, Taken]] = {}
        places = [(n, row, stage) for n, stage in enumerate(self.stepping.stages) for row in range(len(stage.sites))]
        for (number, row, stage), entries in zip(places, by_site, strict=True):
            for entry in entries:
                begin = row * stage.channels
                taken = Taken(entry, number, begin, begin + stage.channels)
                found.setdefault(entry.layer, {})[entry.name] = taken
        return found

    def take_off(self) -> None:
        """Leave nothing behind."""
        changed = [("the network", self.root), *self._readers.items(), *self.links.layers.items()]
        for path, module in changed:
            if "_original" not in vars(type(module)):
                raise WrappedModelError(
                    f"{path} has become a {type(module).__name__} since attach; undo that before detach"
                )
        modules = [module for _, module in changed]
        try:
            self._strip(modules)
        except BaseException:  # Ctrl-C, just here
            self._strip(modules)
            raise

    def _strip(self, modules: list[nn.Module]) -> None:
        """Undo what attach did; may be called twice."""
        self.root._modules.pop(CONTROLLERS, None)
        self.root.__dict__.pop(STEPS, None)
        for module in modules:
            if is_stepped(module):
                make_plain(module)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "frozen": None, "freezing": {}}  # a copy made inside frozen_steps would never leave it

    # -- passes --------------------------------------------------------------------------------------------------------

    def around(self) -> list[Given] | None:
        """What the pass that this thread is in has given: a network may be entered again inside itself."""
        return None if torch.compiler.is_compiling() else self._here.givens

    def enter(self, root: nn.Module) -> None:
        """Begin a pass in this thread."""
        if torch.compiler.is_compiling():
            self._look_while_compiling()
            self._hand_out(root, self.givens(root))
            return
        self.links.refuse_changes(root)
        givens = self._here.givens = self.givens(root)
        self._hand_out(root, givens)
        if torch.is_grad_enabled() and not in_transform():  # with all weights frozen too: an input may want a gradient
            for layer, given in zip(self.links.layers.values(), givens, strict=True):
                layer._slot.kept = given  # type: ignore[union-attr]

    @torch.compiler.assume_constant_result
    def _look_while_compiling(self) -> bool:
        """Whenever the network is compiled, and so after every change; not traced."""
        self.links.refuse_changes(self.root)
        return True

    def leave(self, root: nn.Module, around: list[Given] | None) -> None:
        """End it, however it went; twice does no harm."""
        if not torch.compiler.is_compiling():
            self._here.givens = around
        self._hand_out(root, around)

    def _hand_out(self, root: nn.Module, givens: list[Given] | None) -> None:
        for number, layer in enumerate(self._layers(root)):
            layer._slot.here.cell.given = None if givens is None else givens[number]  # type: ignore[union-attr]

    # -- what is computed ----------------------------------------------------------------------------------------------

    @torch.compiler.assume_constant_result
    def _taking(self) -> tuple[tuple[str, tuple[tuple[str, Taken], ...]], ...]:
        """Every stepped layer with the parameters that step sizes enter: to the compiler a constant."""
        return self._takes

    def _layers(self, root: nn.Module) -> Iterable[nn.Module]:
        if torch.compiler.is_compiling():
            return [attrgetter(path)(root) for path, _ in self._taking()]
        return self.links.layers.values()

    def givens(self, root: nn.Module) -> list[Given]:
        """What every stepped layer runs with, in order.

        Parameters that are sharded are left to be made where they are gathered.
        """
        if self.frozen is not None:
            return self.frozen
        takes, begins = self._taking(), {stage: read.begin for stage, read in enumerate(self._reads())}
        with self.no_autocast(root):
            flat = self._flat(root, self._all())
            raws = self._raws(root)
            made = self._made(root, raws, [taken for _, own in takes for _, taken in own], flat)
        graded = flat.requires_grad or any(effective.requires_grad for effective in made if effective is not None)
        pairs = iter(zip(raws, made, strict=True))
        return [Given(flat, begins, {name: next(pairs) for name, _ in own}, graded) for _, own in takes]

    def alone(self, stages: frozenset[int]) -> Given:
        """What a layer runs with that is called by itself: the step sizes of its stages."""
        if self.frozen is not None:
            return self.frozen[0]._replace(made={})  # of all stages
        chosen = sorted(stages)
        with self.no_autocast(self.root):
            return Given(self._flat(self.root, chosen), self._begins(chosen), {}, False)

    def _begins(self, stages: list[int]) -> dict[int, int]:
        """Where the step sizes of each stage begin, one after the other."""
        reads = self._reads()
        ends = accumulate([len(reads[stage].sites) * reads[stage].channels for stage in stages], initial=0)
        return dict(zip(stages, ends, strict=False))

    def _raws(self, root: nn.Module) -> list[Tensor]:
        """The trained parameters that step sizes enter."""
        found, traced = [], torch.jit.is_tracing()  # where sizes are tensors
        for layer, (_, own) in zip(self._layers(root), self._taking(), strict=True):
            for _, taken in own:
                raw = reparam.entered(layer, taken.entry)
                entry, sizes = taken.entry, taken.end - taken.begin
                whole = entry.length is None and not traced
                if whole and raw.shape[entry.dimension] != sizes:  # a kernel would not notice
                    raise MismatchError(
                        f"{entry.parameter} has another size since attach ({raw.shape[entry.dimension]} channels, "
                        f"{sizes} step sizes); prune timestepper.fold(net), or detach and attach again"
                    )
                found.append(raw)
        return found

    def _made(self, root: nn.Module, raws: list[Tensor], taken: list[Taken], flat: Tensor) -> Sequence[Tensor | None]:
        """Effective parameters; None for those that are sharded."""
        if any(map(is_sharded, raws)):
            whole = [number for number, raw in enumerate(raws) if not is_sharded(raw)]
            made = self._made(root, [raws[number] for number in whole], [taken[number] for number in whole], flat)
            by_number = dict(zip(whole, made, strict=True))
            return [by_number.get(number) for number in range(len(raws))]
        choice, reads = root._modules[CONTROLLERS].fused, self._reads()  # type: ignore[union-attr]
        plain = all(each.entry.plain for each in taken)
        of = kernels.scales(raws, flat, insist=choice is True) if raws and plain and choice is not False else None
        if of is not None:
            return kernels.scale(raws, flat, [reads[each.stage].begin + each.begin for each in taken], of)
        sizes = [stage.unbind() for stage in self.by_stage(flat)]
        rows = [sizes[each.stage][each.begin // reads[each.stage].channels] for each in taken]
        return reparam.effective([each.entry for each in taken], raws, rows)

    def trained_parameters(self) -> dict[str, Tensor]:
        """The parameters that step sizes enter, as they are trained."""
        names = [taken.entry.parameter for _, own in self._takes for _, taken in own]
        return dict(zip(names, self._raws(self.root), strict=True))

    def effective_parameters(self) -> dict[str, Tensor]:
        """The parameters that the network runs with, where they differ from the trained ones."""
        found = {}
        with held_still(self.root):
            givens = self.givens(self.root)
        reparam.refuse_shared(self.root, [tuple(taken.entry for _, own in self._takes for _, taken in own)])
        for given, (_, own) in zip(givens, self._takes, strict=True):
            for name, taken in own:
                effective = given.made[name][1]
                if effective is None:
                    raise WrappedModelError(
                        f"{taken.entry.parameter} is sharded; load the full state dict into an attached network that "
                        "is not"
                    )
                found[taken.entry.parameter] = effective
        return found


def _end(root: nn.Module, entry: Entry) -> End:
    layer = root.get_submodule(entry.layer)
    weight = reparam.trained(layer, entry.name)
    scales = entry.name != "weight" or (weight is not None and weight.dim() == 1)
    return End(entry.layer, entry.name, entry.offset, scales, scales and reparam.is_norm(layer))


def _readers(sites: list[Site], layers: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Modules that read the weights of stepped layers inside them, with the names of these."""
    paths = dict.fromkeys(path for site in sites for path in site.readers)
    return {
        path: tuple(p.removeprefix(f"{path}.") for p in layers if not path or p.startswith(f"{path}."))
        for path in paths
    }


def find(module: nn.Module) -> Steps | None:
    """The steps of a network, None of one that has none."""
    return module.__dict__.get(STEPS)


def find_inside(net: object) -> Steps | None:
    """The steps of the network inside DDP, AveragedModel or torch.compile wrappers."""
    while isinstance(net, nn.Module):
        if (found := find(net)) is not None:
            return found
        net = net._modules.get("module", net._modules.get("_orig_mod"))
    return None


def find_steps(net: nn.Module) -> Steps:
    """The steps of the network inside wrappers; an error where there are none."""
    found = find_inside(net)
    if found is None:
        parts = net.named_modules() if isinstance(net, nn.Module) else ()
        part = next((path for path, part in parts if find(part) is not None), None)
        told = f"; its part {part} has some: pass that one" if part else "; call timestepper.attach first"
        raise NotAttachedError(f"{type(net).__name__} has no controllers{told}")
    return found
