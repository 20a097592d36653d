"""What is seen of the model at the end of an epoch, beside loss and error."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Observation:
    """What the caller saw in the model at the end of an epoch."""

    scalars: dict[str, float] = field(default_factory=dict)
    profiles: dict[str, list[float]] = field(default_factory=dict)  # one number per depth
    columns: dict[str, float] = field(default_factory=dict)  # shown beside the progress bar


class Observer:
    """Looks at the model at the end of every epoch; this one sees nothing."""

    def __init__(self) -> None:
        self.memory: list[Tensor] = []  # what a look needs of the one before; a checkpoint keeps it

    def look(self) -> Observation:
        return Observation()
