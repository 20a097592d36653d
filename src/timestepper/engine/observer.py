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

    def look(self) -> Observation:
        return Observation()

    def memory(self) -> list[Tensor]:
        """What the next look needs of those before it; a checkpoint keeps it."""
        return []

    def remember(self, memory: list[Tensor]) -> None:
        """Go on from the memory of a checkpoint."""
