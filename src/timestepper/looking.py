"""Looks at step sizes that change nothing: no thread's training, no estimate that moves, no shard left out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from timestepper.controllers import Controller
from timestepper.controllers.base import is_sharded

Part = TypeVar("Part", bound=nn.Module)


class _Looking(threading.local):
    """Whether this thread only looks at step sizes (no context variable: torch 2.11 cannot compile a look at one)."""

    looks = False


here = _Looking()


@contextmanager
def held_still(root: nn.Module) -> Iterator[None]:
    """Read step sizes and change nothing: a user's controller with dropout or batch norm runs in eval mode.

    In this thread alone, for another one may train. And torch's spectral_norm, which moves its estimate whenever its
    weight is read, does not.
    """
    parts = [part for module in root.modules() if isinstance(module, ParametrizationList) for part in module.modules()]
    moving, around = [part for part in parts if part.training], here.looks

    def let_go() -> None:
        here.looks = around
        for part in moving:
            part.training = True

    try:
        try:
            for part in moving:
                part.training = False
            here.looks = True
            yield
        finally:
            let_go()
    finally:
        let_go()  # once more: Ctrl-C may have hit it


def _in_eval(module: Part) -> Part:
    """A module in eval mode that shares its parameters and buffers with this one."""
    own = object.__new__(type(module))
    own.__dict__.update(vars(module), _parameters={**module._parameters}, training=False)
    own.__dict__["_modules"] = {name: child and _in_eval(child) for name, child in module._modules.items()}
    return own


def step_sizes_of(controller: Controller, described: Tensor) -> Tensor:
    """Its step sizes. Outside of a forward of the network FSDP leaves it in shards, which every rank has to gather."""
    if here.looks and any(part.training for part in controller.modules()):
        controller = _in_eval(controller)
    if not torch.compiler.is_compiling() and any(map(is_sharded, controller.parameters())):
        whole = {name: gathered(parameter) for name, parameter in controller.named_parameters()}
        return torch.func.functional_call(controller, whole, (described,))
    return controller(described)


def gathered(described: Tensor) -> Tensor:
    """The whole of a descriptor or parameter that is sharded; every rank adds its part to its gradient."""
    if not is_sharded(described):
        return described
    from torch.distributed.tensor import Partial

    return described.full_tensor(grad_placements=[Partial("avg")] * described.device_mesh.ndim)  # type: ignore[attr-defined]
