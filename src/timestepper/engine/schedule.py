"""The learning rate as a closed-form function of the step; there is no scheduler state to save or to lose."""

import math
from dataclasses import dataclass

from timestepper.errors import UnknownNameError

LAWS = ("constant", "steps", "cosine")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step of a run.

    ``law="steps"`` divides by ``factor`` at each fraction of the run in ``milestones``, or, where ``every`` is given,
    after each ``every`` epochs. ``"cosine"`` falls to zero along half a cosine. Both start after ``warmup_epochs`` of a
    linear rise, which replaces the first epochs and does not shift what follows.
    """

    lr: float
    epochs: int
    steps_per_epoch: int
    law: str = "steps"
    milestones: tuple[float, ...] = (0.5, 0.75)
    every: int | None = None
    factor: float = 10.0
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise UnknownNameError(f"no schedule is called {self.law!r}; there are {', '.join(LAWS)}")

    @property
    def steps(self) -> int:
        """Number of updates of the whole run."""
        return self.epochs * self.steps_per_epoch

    def rate(self, step: int) -> float:
        """Learning rate of update number ``step``, counted from 0."""
        warmup = self.warmup_epochs * self.steps_per_epoch
        if step < warmup:
            return self.lr * (step + 1) / (math.floor(warmup) + 1)
        if self.law == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1.0, self.steps - warmup)))
        try:
            return self.lr / self.factor ** self._drops(step)
        except OverflowError:
            return 0.0

    def _drops(self, step: int) -> int:
        if self.law == "constant":
            return 0
        if self.every is not None:
            return step // (self.every * self.steps_per_epoch)
        return sum(step >= fraction * self.steps for fraction in self.milestones)

    def agrees(self, other: "Schedule", steps: int) -> bool:
        """Whether both give the same rate to each of the first ``steps`` updates.

        A run may go on under another schedule only then: its end is what the other schedule alone would have given.
        """
        return all(self.rate(step) == other.rate(step) for step in range(steps))
