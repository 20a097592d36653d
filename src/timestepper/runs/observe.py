"""What is looked at while a run goes on: step sizes and, where asked for, the stability bound."""

from dataclasses import replace

from torch import Tensor, nn

from timestepper.api import evolution_time, is_attached, step_sizes
from timestepper.engine.observer import Observation, Observer
from timestepper.errors import RecipeError, StabilityError
from timestepper.stability import Monitor


class NetworkObserver(Observer):
    """Looks at a network with or without controllers; ``monitor`` adds the bound.

    A network whose bound is not known is refused here, and not by the first process alone after an epoch of training.
    """

    def __init__(self, model: nn.Module, input_shape: tuple[int, int, int], monitor: bool = False):
        self._model = model
        self._monitor = Monitor(input_shape) if monitor else None
        if self._monitor is not None:
            try:
                self._monitor.prepare(model)
            except StabilityError as error:
                reason = str(error).partition("; ")[0]  # the advice behind it is for another command
                raise RecipeError(f"run.monitor: {reason}; set run.monitor=false") from error

    def look(self) -> Observation:
        seen, bound = self.steps(), self._monitor.observe(self._model) if self._monitor else {}
        return replace(seen, scalars=seen.scalars | bound)

    def memory(self) -> list[Tensor]:
        return list(self._monitor.memory) if self._monitor else []

    def remember(self, memory: list[Tensor]) -> None:
        if self._monitor:
            self._monitor.memory = list(memory)

    def steps(self) -> Observation:
        """The step sizes alone."""
        if not is_attached(self._model):
            return Observation()
        sizes = {stage: dt.mean(1).tolist() for stage, dt in step_sizes(self._model).items()}
        means = {stage: sum(dt) / len(dt) for stage, dt in sizes.items()}
        return Observation(
            scalars={f"step_size/{stage}": mean for stage, mean in means.items()}
            | {f"evolution_time/{stage}": time for stage, time in evolution_time(self._model).items()},
            profiles={f"step_sizes/{stage}": dt for stage, dt in sizes.items()},
            columns={f"dt {stage}": mean for stage, mean in means.items()},
        )
