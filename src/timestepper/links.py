"""What was done to a network before step sizes were attached to it, or since.

A norm that took the place of another is taken in, a part that was put around another is seen through; anything else is
refused by name, because a layer would silently run without its step size.
"""

from dataclasses import dataclass
from types import CellType
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from timestepper import reparam
from timestepper.controlled import Convs
from timestepper.errors import (
    AlreadyAttachedError,
    MismatchError,
    NoSitesError,
    UnsupportedSiteError,
    WrappedModelError,
)
from timestepper.root import CONTROLLERS, STEPS
from timestepper.stepped import is_stepped, make_plain, make_stepped

_WRAPPERS = {"OptimizedModule", "DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "AveragedModel"}
_WRAPPERS |= {"FSDPModule"}  # what fully_shard makes of a module's class
_ADAPTER = "_active_adapter"  # where a layer of PEFT keeps the names of those that run
_TRANSPARENT = {"CheckpointWrapper", "OptimizedModule"}  # put around a layer, they run it as it is


@dataclass
class _Link:
    """A module that is the child of another, as it was at the last look."""

    parent: nn.Module
    name: str
    child: nn.Module
    path: str
    wrapper: nn.Module | None = None  # put around the child since attach

    @property
    def now(self) -> nn.Module | None:
        return self.parent._modules.get(self.name)

    @property
    def seen(self) -> nn.Module:
        return self.child if self.wrapper is None else self.wrapper

    def wrapped(self) -> bool:
        """Whether what is there now has the child inside it."""
        return self.now is not None and any(part is self.child for part in self.now.modules())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "wrapper": None}  # found again: a compiled one cannot be copied before what it wraps


class Links:
    """From a network to its stepped layers and to those that describe its sites."""

    def __init__(self, root: nn.Module, layers: dict[str, nn.Module], convs: Convs):
        self.root, self.layers, self.convs = root, layers, convs
        links: dict[str, _Link] = {}
        for layer in layers:
            parent, path = root, ""
            for name in layer.split("."):
                path = f"{path}.{name}" if path else name
                links[path] = _Link(parent, name, parent._modules[name], path)  # type: ignore[arg-type]
                parent = links[path].child
        self._links = list(links.values())
        self._homes = []  # of layers that are read and not called
        for path in dict.fromkeys(conv.rpartition(".")[0] for conv in convs):
            if path:
                above, _, name = path.rpartition(".")
                self._homes.append(_Link(root.get_submodule(above), name, root.get_submodule(path), path))
        tuned = [link for link in self._links if _ADAPTER in vars(link.child)]
        self._adapters = [(link.path, link.child, vars(link.child)[_ADAPTER]) for link in tuned]
        self._remember()

    def _remember(self) -> None:
        watched = [*self._links, *self._homes]
        self._watched = [(self.root._modules, CONTROLLERS), *((link.parent._modules, link.name) for link in watched)]
        self._seen = [self.root._modules[CONTROLLERS], *(link.seen for link in watched)]
        self._watched += [(vars(layer), _ADAPTER) for _, layer, _ in self._adapters]
        self._seen += [active for _, _, active in self._adapters]
        self._classes = list(map(type, self.layers.values()))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_watched": [], "_seen": [], "_classes": []}  # looked at again; classes cannot be pickled

    def _refuse_late(self, wrapper: DistributedDataParallel) -> None:
        """Controllers that came after DistributedDataParallel would differ from process to process."""
        controllers = self.root._modules.get(CONTROLLERS)
        late = None if controllers is None else next(controllers.parameters(), None)
        if late is None or any(late is averaged for averaged in wrapper._module_parameters):  # as a rule the first one
            return
        trained = next(next(iter(self.layers.values())).parameters(), None)
        if any(trained is averaged for averaged in wrapper._module_parameters):
            raise WrappedModelError(
                "DistributedDataParallel was put around the network before attach, and leaves the controllers of each "
                "process to themselves; attach first, then wrap"
            )

    def refuse_changes(self, root: nn.Module) -> None:
        """Whether every stepped layer is still in its place and still stepped; new norms are taken in."""
        if root is not self.root:
            raise WrappedModelError(
                "a shallow copy (copy.copy, DataParallel) has no step sizes of its own; use copy.deepcopy, or "
                "DistributedDataParallel"
            )
        if (wrapper := DistributedDataParallel._active_ddp_module) is not None:
            self._refuse_late(wrapper)
        # As two lists: this is asked at every forward.
        there = [siblings.get(name) for siblings, name in self._watched]
        if there == self._seen and list(map(type, self.layers.values())) == self._classes:
            return
        if CONTROLLERS not in root._modules:
            raise MismatchError(
                "the network's controllers were deleted; call timestepper.detach(net), then attach again"
            )
        for link in self._links:
            if link.now is not link.seen:
                self._take_in(link)
        for home in self._homes:
            if home.now is not home.seen:
                self._describe_by(home)
        for path, layer, active in self._adapters:
            if (now := vars(layer).get(_ADAPTER)) != active:
                raise MismatchError(
                    f"{path} runs the adapter {now} in place of {active} since attach, without its step size; activate "
                    "that one again, or save the controllers, detach, and load them again"
                )
        for path, layer in self.layers.items():
            if not is_stepped(layer):
                raise UnsupportedSiteError(f"{path} has changed its class since attach; detach and attach again")
        self._remember()

    def _take_in(self, link: _Link) -> None:
        new, old, around = link.now, link.child, link.wrapped()
        if type(new).__name__ == "FullyShardedDataParallel":
            raise WrappedModelError(f"{link.path} is wrapped in FSDP1, which hides its weights; {reparam.USE_FSDP2}")
        stepped = link.path in self.layers
        shows = not stepped and all(hasattr(new, name) for name in old._modules)
        if new is old or (around and (shows or type(new).__name__ in _TRANSPARENT)):
            link.wrapper = None if new is old else new
            return
        if stepped and new is not None and reparam.replaces(new, old):
            taken, alone = old._taken, old._alone
            make_plain(old)
            make_stepped(new, taken, alone)  # type: ignore[arg-type]
            self.layers[link.path] = link.child = new
            return
        was, which = (
            ("wrapped in", "hides its layers") if around else ("replaced by", "would run without its step size")
        )
        done = "removed since attach" if new is None else f"{was} {type(new).__name__} since attach, which {which}"
        raise MismatchError(
            f"{link.path} was {done}; call timestepper.detach(net) first and attach afterwards, or change "
            "timestepper.fold(net)"
        )

    def _describe_by(self, home: _Link) -> None:
        """Another part has taken the place of one that describes a site, or was put around it."""
        new = home.now
        if home.wrapped():
            home.wrapper = None if new is home.child else new
            return
        for path in [path for path in self.convs if path.rpartition(".")[0] == home.path]:
            name = path.rpartition(".")[2]
            if new is None or name not in new._modules:
                raise MismatchError(
                    f"{home.path} was replaced by {type(new).__name__} since attach, which has no {name} for the "
                    "controller to read; call timestepper.detach(net) and attach again"
                )
            self.convs[path] = new._modules, name
            home.child = new


def in_shards(net: nn.Module) -> bool:
    """Whether ``fully_shard`` was called on a network or a part of it, which then cannot be copied."""
    return any(base.__name__ == "FSDPModule" for part in net.modules() for base in type(part).__mro__)


def refuse_wrapped(model: nn.Module) -> None:
    """Before attach: a network that is compiled, wrapped, or attached already."""
    if not isinstance(model, nn.Module):
        given = repr(model) if isinstance(model, str | type) else f"a {type(model).__name__}"
        raise NoSitesError(f"a network is needed, not {given}; timestepper.adapters.create_model makes one by name")
    if isinstance(model, torch.jit.ScriptModule):
        raise WrappedModelError(
            f"{model.original_name} is TorchScript, whose layers cannot be changed; attach to the Python network, and "
            "script or trace timestepper.fold(net)"
        )
    if isinstance(model, torch.fx.GraphModule):
        raise WrappedModelError(
            f"{type(model).__name__} is a graph of torch.fx, which cannot be copied with step sizes; attach to the "
            "Python network, and trace the result"
        )
    if is_stepped(model) and not {STEPS, "_slot"} & vars(model).keys():
        make_plain(model)  # type(net)(...) has made it, of an attached network's class
    for path, module in model.named_modules():
        if (found := module.__dict__.get(STEPS)) is not None:
            raise AlreadyAttachedError(
                f"{path or type(model).__name__} has controllers already ({found.stepping.controller}); "
                "call timestepper.detach(net) first to attach others"
            )
        if is_stepped(module):
            raise AlreadyAttachedError(
                f"{path or type(model).__name__} is a part or a copy of another attached network and has its step "
                "sizes; call timestepper.detach on that network first"
            )
        kind = type(module).__name__
        wrapped = _WRAPPERS.intersection(base.__name__ for base in type(module).__mro__)
        if wrapped:
            raise WrappedModelError(
                f"{path or 'the model'} is wrapped in {wrapped.pop()}; attach first, then wrap the result"
            )
        if module._compiled_call_impl is not None or _is_compiled(module, "forward"):
            raise WrappedModelError(f"{path or kind} is compiled; attach first, then compile the result")
        if _has_hold_of_a_module(vars(module).get("forward")):
            raise WrappedModelError(
                f"{path or kind} has a forward of its own, a function that holds a module, which would run in place of "
                "every copy; attach first, and patch the result"
            )
    for name, parameter in model.named_parameters():
        reparam.refuse_split(name, parameter)
    if hasattr(model, CONTROLLERS):
        raise AlreadyAttachedError(f"{type(model).__name__} has a part or attribute named 'controllers'; rename it")


def leave_others_forwards(copied: nn.Module) -> None:
    """No part of a copy may run one of the network that was copied: functions are not copied with what they hold.

    One that torch has compiled is the part's own, and dropped.
    """
    for path, part in copied.named_modules():
        if type(part).__name__ == "OptimizedModule":
            continue  # it makes its own when it is copied
        for name in ("forward", "_compiled_call"):  # the second is that of transformers' generate
            if _is_compiled(part, name):
                del vars(part)[name]
        if _has_hold_of_a_module(vars(part).get("forward")):
            where = f"{path}.forward" if path else "forward"
            raise WrappedModelError(
                f"cannot fold: {where} is a function that holds a module, which would run in place of every copy; undo "
                f"it (del net.{where}), and patch the folded network"
            )


def _is_compiled(part: nn.Module, name: str) -> bool:
    return hasattr(vars(part).get(name), "_torchdynamo_orig_callable")


def _has_hold_of_a_module(forward: Any) -> bool:
    """A function that was made around a module or a method of one, such as a patch that calls the old forward."""
    cells = getattr(getattr(forward, "__func__", forward), "__closure__", None) or ()
    held = [cell.cell_contents for cell in cells if cell != CellType()]  # an empty one has none
    return any(isinstance(getattr(each, "__self__", each), nn.Module) for each in held)
