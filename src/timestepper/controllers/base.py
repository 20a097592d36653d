"""What a controller is: the weights of a stage in, its step sizes out."""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class StageShape:
    """All that a controller knows of its stage."""

    sites: int
    channels: int
    descriptor: int
    reduction: int
    normed: bool = True  # whether a branch's output has its size from a norm and not from what it reads
    network_sites: int | None = None  # of all stages together; None: this is the only one

    @property
    def hidden(self) -> int:
        return max(1, self.channels // self.reduction)


class Controller(nn.Module):
    """Maps the descriptors of one stage, (L, D) in depth order, to its step sizes, (L, C).

    It never sees a feature map or a model. Row d may depend on rows 0..d only: a step knows the steps before it.
    Parameters are used in float32 or better, whatever precision the network was cast to.
    """

    reads_weights = True  # False: the descriptors are not used and need not be computed
    reads_gain = False  # True: it is shown the logarithm of each branch's gain, (L, 1), in place of its weights
    decays = True  # False: its parameters have no weight decay, unless the user asks for it
    own_start = False  # True: its options say where its step sizes begin, and ``attach(start=…)`` is refused

    def __init__(self, shape: StageShape):
        super().__init__()
        self.shape = shape

    @abstractmethod
    def forward(self, descriptors: Tensor) -> Tensor: ...

    def multiply_adds(self) -> int:
        """What its matrix products cost in one training step, whatever the batch."""
        return 0

    def precise(self) -> list[Tensor]:
        """The parameters in the order of their definition, in float32 or better."""
        return [at_least_float32(parameter) for parameter in self.parameters()]

    def extra_repr(self) -> str:
        return f"sites={self.shape.sites}, channels={self.shape.channels}, descriptor={self.shape.descriptor}"


def by_stage(flat: Tensor, shapes: Iterable[tuple[int, int]]) -> list[Tensor]:
    """The stages that lie one after the other in a vector, each (sites, width)."""
    shapes = list(shapes)
    parts = flat.split([sites * width for sites, width in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def in_one(stages: Iterable[Tensor]) -> Tensor:
    """The other way round: all stages one after the other in a vector."""
    return torch.cat([stage.flatten() for stage in stages])


def at_least_float32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def fits_float32(value: float) -> bool:
    """Whether it is a number that float32 has: neither NaN, nor so large that it would become infinite, nor 0."""
    known = torch.finfo(torch.float32)
    return value == 0 or known.tiny <= abs(value) <= known.max


def is_sharded(tensor: Tensor) -> bool:
    """By name: torch.distributed takes long to load."""
    return type(tensor).__name__ == "DTensor"


def he_normal(*shape: int, gain: float = 1.0) -> nn.Parameter:
    """A weight whose last dimension is the fan-in, He et al. (2015); the gain is sqrt(2) in front of a ReLU."""
    return nn.Parameter(torch.randn(*shape) * gain / shape[-1] ** 0.5)


def in_transform() -> bool:
    """Whether a transform of torch.func (grad, vmap) is at work, which knows neither our operators nor lists."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None
