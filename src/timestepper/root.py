"""The network itself, while it is attached: a subclass of its own class whose every forward is a pass of its steps."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from timestepper.stepped import remade, subclass

CONTROLLERS = "controllers"
# Methods that an attached network does in a way of its own, where its class has them: name -> original class -> method.
root_methods: dict[str, Callable[[Any], Callable]] = {}

STEPS = "_timestepper"  # where a network keeps its Steps; no child, no parameter


@functools.cache
def root_class(original: Any) -> Any:
    """Of a network whose every forward is a pass of its steps."""

    def forward(self, *args, **kwargs):
        steps = self._timestepper
        if not torch.compiler.is_compiling() and torch.fx._symbolic_trace.is_fx_symbolic_tracing():
            return original.forward(self, *args, **kwargs)  # each layer that is left whole runs by itself
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

    methods: dict[str, Any] = {
        "forward": functools.wraps(original.forward)(forward),
        "__reduce_ex__": lambda self, protocol: (remade, (root_class, original), self.__getstate__()),
        "_original": original,
    }
    methods |= {name: make(original) for name, make in root_methods.items() if hasattr(original, name)}
    if issubclass(original, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        methods |= _hiding_controllers(original)
    return subclass(original, methods)


def _hiding_controllers(original: Any) -> dict[str, Any]:
    """A network that is a container itself gains a child that is none of its items."""

    def items(self):
        return [(key, child) for key, child in self._modules.items() if key != CONTROLLERS]

    def get_item(self, key):
        bare = object.__new__(original)
        bare.__dict__ = {**vars(self), "_modules": dict(items(self))}
        return original.__getitem__(bare, key)

    keyed = issubclass(original, nn.ModuleDict)
    methods: dict[str, Any] = {
        "__len__": lambda self: len(self._modules) - 1,
        "__iter__": lambda self: iter([key if keyed else child for key, child in items(self)]),
        "__getitem__": get_item,
    }
    if keyed:
        methods |= {
            "items": items,
            "keys": lambda self: [key for key, _ in items(self)],
            "values": lambda self: [child for _, child in items(self)],
        }
    return methods
