"""The network itself, while it is attached: a subclass of its own class whose every forward is a pass of its steps."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from timestepper.errors import MismatchError
from timestepper.stepped import remade, subclass

CONTROLLERS = "controllers"
# Methods that an attached network does in a way of its own, where its class has them: name -> original class -> method.
root_methods: dict[str, Callable[[Any], Callable]] = {}

_EDITS = ("__setitem__", "__delitem__", "__iadd__", "__imul__", "append", "clear", "extend", "insert", "pop", "update")
STEPS = "_timestepper"  # where a network keeps its Steps; no child, no parameter


@functools.cache
def root_class(original: Any) -> Any:
    """The class of a network whose every forward is a pass of its steps."""
    # Fills root_methods, also for a pickle in a fresh process, which names no other module of ours than this one. No
    # import statement, because that module is built on this one.
    importlib.import_module("timestepper.integrations.pretrained")

    def forward(self, *args, **kwargs):
        steps = self.__dict__.get(STEPS)
        if steps is None:  # folded or detached, and called by what was put around it before: accelerate's autocast
            return original.forward(self, *args, **kwargs)
        if not torch.compiler.is_compiling() and torch.fx._symbolic_trace.is_fx_symbolic_tracing():
            return original.forward(self, *_naming_controllers(self, args), **kwargs)
        around = steps.around()
        try:  # and no hook, which torch calls after an Exception, but not after Ctrl-C
            steps.enter(self)
            return original.forward(self, *args, **kwargs)
        finally:
            try:
                steps.leave(self, around)
            except BaseException:  # Ctrl-C, just here
                steps.leave(self, around)
                raise

    def load_state_dict(self, state_dict, *args, **kwargs):
        strict = args[0] if args else kwargs.get("strict", True)  # which says by itself what is missing
        if not strict and STEPS in self.__dict__:
            self.__dict__[STEPS].warn_if_start_moves(state_dict)
        return original.load_state_dict(self, state_dict, *args, **kwargs)

    methods: dict[str, Any] = {
        "forward": functools.wraps(original.forward)(forward),
        "load_state_dict": functools.wraps(original.load_state_dict)(load_state_dict),
        "__reduce_ex__": lambda self, protocol: (remade, (root_class, original), self.__getstate__()),
        "_original": original,
    }
    told = inspect.getattr_static(original, "no_weight_decay", None)
    if told is None or inspect.isfunction(told):  # what is no method is not for timm
        methods["no_weight_decay"] = _no_weight_decay(original)
    methods |= {name: make(original) for name, make in root_methods.items() if hasattr(original, name)}
    if isinstance(getattr(original, "dtype", None), property):  # transformers': that of the first parameter
        methods["dtype"] = property(_own_dtype)
    if issubclass(original, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        methods |= _hiding_controllers(original)
    return subclass(original, methods)


def _naming_controllers(net: nn.Module, args: tuple) -> tuple:
    """What a forward is given while torch.fx traces it, by way of the controllers, which change nothing.

    Stepped layers are left whole and run by themselves; a graph that did not name the controllers would lack their
    parameters.
    """
    if not args or not isinstance(args[0], torch.fx.Proxy):
        return args
    tracer = args[0].tracer
    path = tracer.path_of_module(net._modules[CONTROLLERS])  # type: ignore[attr-defined]
    return tracer.create_proxy("call_module", path, (args[0],), {}), *args[1:]


def _no_weight_decay(original: Any) -> Callable:
    def no_weight_decay(self, *args: Any, **options: Any) -> set[str]:
        """Names of the parameters that want none, as timm's optimisers ask a network for them."""
        own = original.no_weight_decay(self, *args, **options) if hasattr(original, "no_weight_decay") else ()
        controllers: Any = self._modules.get(CONTROLLERS)  # none of a network that was made by type(net)(...)
        kept = [stage for stage, each in controllers.items() if not each.decays] if controllers is not None else []
        told = (f"{CONTROLLERS}.{stage}.{name}" for stage in kept for name, _ in controllers[stage].named_parameters())
        return {*(own or ()), *told}

    return no_weight_decay


def _own_dtype(net: nn.Module) -> torch.dtype:
    """Controllers stay in float32, whatever the network is cast to."""
    parameters = (p for name, p in net.named_parameters() if not name.startswith(f"{CONTROLLERS}."))
    return next((p.dtype for p in parameters if p.is_floating_point()), torch.get_default_dtype())


def _items(net: nn.Module) -> list[tuple[str, nn.Module | None]]:
    return [(key, child) for key, child in net._modules.items() if key != CONTROLLERS]


def _bare(net: nn.Module, original: Any) -> Any:
    """The network without its controllers, to look at."""
    bare = object.__new__(original)
    bare.__dict__ = {**vars(net), "_modules": dict(_items(net))}
    return bare


def _hiding_controllers(original: Any) -> dict[str, Any]:
    """A network that is a container itself gains a child that is none of its items."""
    keyed = issubclass(original, nn.ModuleDict)
    methods: dict[str, Any] = {
        "__len__": lambda self: len(_items(self)),
        "__iter__": lambda self: iter([key if keyed else child for key, child in _items(self)]),
        "__getitem__": lambda self, key: original.__getitem__(_bare(self, original), key),
    }
    if keyed:
        methods |= {
            "__contains__": lambda self, key: key != CONTROLLERS and key in self._modules,
            "items": lambda self: dict(_items(self)).items(),
            "keys": lambda self: dict(_items(self)).keys(),
            "values": lambda self: dict(_items(self)).values(),
        }
    return methods | {name: _editing(getattr(original, name)) for name in _EDITS if hasattr(original, name)}


def _editing(edit: Callable) -> Callable:
    """A method that changes a container, without the controllers among what it counts and renames."""

    @functools.wraps(edit)
    def edited(self, *args, **kwargs):
        children = self._modules  # the very dict: links.py watches it, and ``del`` puts another in its place
        controllers = {key: children.pop(key) for key in (CONTROLLERS,) if key in children}  # none in an inner edit
        try:
            return edit(self, *args, **kwargs)
        finally:
            now = dict(self._modules)
            children.clear()
            children.update(controllers | now | controllers)  # as the first child, and by no other replaced
            self._modules = children
            if controllers and CONTROLLERS in now:
                raise MismatchError(f"{CONTROLLERS!r} is the name of what attach has put in; use another key")

    return edited
