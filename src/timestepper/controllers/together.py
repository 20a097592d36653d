"""The controllers of one network, one for every stage, as its child."""

from collections.abc import Iterable
from itertools import chain
from typing import cast

import torch
from torch import Tensor, nn

from timestepper.controllers import Controller, ControllerSpec, StageShape
from timestepper.controllers.base import is_sharded
from timestepper.errors import StepSizeError


class Controllers(nn.ModuleDict):
    """One controller for every stage. As a child of the network it is no layer: what goes in comes out.

    ``fused`` chooses the kernels: None where they can run, True or False to insist.
    """

    fused: bool | None = None
    dt0: Tensor  # the first step sizes, where there is a start to count from

    def __init__(self, spec: ControllerSpec, shapes: dict[str, StageShape]):
        super().__init__({name: spec.build(shape) for name, shape in shapes.items()})
        self.spec = spec

    def forward(self, *inputs):
        return inputs[0] if len(inputs) == 1 else inputs

    def _load_from_state_dict(self, state_dict, prefix, metadata, strict, missing, unexpected, errors) -> None:
        """Keys that these controllers do not have are an error, also where loading is not strict.

        Torch would drop them, and the network would run with other step sizes than were saved; as it would where all
        is there but the first step sizes that a start counts from. Other keys that are missing are no fault: plain
        weights have none, and each shard of a file has some.
        """
        own = {prefix + key for key in self.state_dict()}
        given = {key for key in state_dict if key.startswith(prefix)}
        odd = ""
        if foreign := sorted(given - own):
            odd = f"{foreign[0]} is no part of this network's controllers"
        elif given and own - given == {f"{prefix}dt0"}:
            odd = f"{prefix}dt0, which the start of this network's controllers counts from, was not saved"
        if odd:
            errors.append(
                f"{odd}: their kind, start or network is another; attach as it was saved, load a trainer's checkpoint "
                f"by timestepper.from_pretrained(Class, folder), or leave {prefix}* out to load the other weights alone"
            )
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """As attach makes them, for a network that was on the meta device until now (``to_empty``)."""
        if "dt0" in self._buffers:
            raise StepSizeError(
                "start= counts from the first step sizes, which a network on the meta device does not have; attach "
                "once its weights are there, or load them"
            )
        for controller in cast(Iterable[Controller], self.values()):
            fresh = self.spec.build(controller.shape)
            tensors = (chain(module.parameters(), module.buffers()) for module in (controller, fresh))
            for mine, new in zip(*tensors, strict=True):
                mine.copy_(_in_shards_of(mine, new.to(mine.device)))


def _in_shards_of(sharded: Tensor, whole: Tensor) -> Tensor:
    if not is_sharded(sharded):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, sharded.device_mesh, sharded.placements)  # type: ignore[attr-defined]
