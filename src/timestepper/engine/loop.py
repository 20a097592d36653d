"""The training loop, as a generator of steps, so that one process can drive one run or interleave several.

Everything that a run needs is in one object; a resume is "load weights, momentum, step". Randomness is a function of
(seed, step, rank) here and of (seed, epoch, index) in the loader; no generator state is carried.
"""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from timestepper.engine import optimiser as optimisers
from timestepper.engine.checkpoint import check_fit
from timestepper.engine.distributed import Group, wrap
from timestepper.engine.evaluation import Batches, Evaluation
from timestepper.engine.journal import Journal
from timestepper.engine.mailbox import Mailbox
from timestepper.engine.metrics import Sums
from timestepper.engine.observer import Observation, Observer
from timestepper.engine.runtime import Runtime
from timestepper.engine.schedule import Schedule
from timestepper.engine.signals import Signals
from timestepper.engine.step import Row, UpdateStep
from timestepper.errors import DataError, DivergedError

_LAG = 16  # steps that the host may be ahead of the device


@dataclass(frozen=True)
class TrainingPlan:
    """What to minimise, and when to do what."""

    seed: int = 0
    log_steps: int = 50
    evaluate_epochs: int = 1
    checkpoint_steps: int = 0  # 0: not by steps
    checkpoint_epochs: int = 1  # 0: only at the end
    checkpoint_seconds: float = 0.0  # 0: not by the clock
    label_smoothing: float = 0.0  # of the loss
    accumulate: int = 1  # parts of a batch that go through the network one after the other


class Interrupted(Exception):
    """A signal asked to stop; the checkpoint of ``step`` is on the disk."""

    def __init__(self, signal: int, step: int):
        super().__init__(f"stopped by signal {signal} at step {step}")
        self.signal = signal
        self.step = step


class Training:
    """One run: its model, data, position and record."""

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        schedule: Schedule,
        train: Batches,
        test: Batches | None,
        *,
        plan: TrainingPlan,
        runtime: Runtime,
        journal: Journal,
        group: Group | None = None,
        signals: Signals | None = None,
        observer: Observer | None = None,
    ):
        self.model, self.optimiser, self.schedule = model, optimiser, schedule
        self.train, self.test, self.plan, self.runtime = train, test, plan, runtime
        self.journal, self.observer = journal, observer or Observer()
        self.group = group or Group(device=runtime.device)
        self.signals = signals or Signals()
        self.step = 0
        self.epochs_done = 0
        self.interval, self.whole_epoch = Sums(), Sums()
        self.best: dict[str, Any] = {}
        self._update: Callable[..., torch.Tensor] | None = None
        self._evaluation = Evaluation(model, runtime, self.group)
        self._mailbox = Mailbox(runtime.device, 1 if self.group.active else _LAG)
        self._quiet = torch.zeros(2, device=runtime.device)
        self._asked = (0, 0)  # stop, save: what the ranks agreed on
        self._saved_at = time.monotonic()
        # What the device must reach for the next step not to wait: a driver of several runs sees to another until then.
        self.waiting: torch.cuda.Event | None = None

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a resume needs, in tensors and plain values."""
        return {
            "model": dict(self.model.state_dict()),
            "momentum": optimisers.momentum_of(self.optimiser),
            "epochs_done": self.epochs_done,
            "interval": self.interval.values,
            "epoch": self.whole_epoch.values,
            "best": self.best,
            "world": self.group.world,
            **({"observed": memory} if (memory := self.observer.memory()) else {}),
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Continue from a state of rank 0 (None: from the start); every other rank gets it from there."""
        position = torch.zeros(2, dtype=torch.int64, device=self.runtime.device)
        momentum = optimisers.momentum_of(self.optimiser)
        if state is not None:
            check_fit(f"step {state['step']}", state, self.model, momentum)
            self.model.load_state_dict(state["model"])
            with torch.no_grad():
                for buffer, saved in zip(momentum, state["momentum"], strict=True):
                    buffer.copy_(saved)
            position += torch.tensor([state["step"], state["epochs_done"]], device=position.device)
            self.interval, self.whole_epoch = Sums(state["interval"]), Sums(state["epoch"])
            self.best = dict(state["best"])
            self.observer.remember(state.get("observed", []))
        self.group.broadcast([*self.model.state_dict().values(), *momentum, position])
        self.step, self.epochs_done = position.tolist()

    def save(self) -> None:
        """Write the checkpoint of this step; on every rank or on none."""
        self._collect(everything=True)
        self.group.agree(lambda: self.journal.save(self.step, self.state()))
        self._saved_at = time.monotonic()

    # -- the loop ----------------------------------------------------------------------------------------------------

    def steps(self) -> Generator[int, None, None]:
        """Train to the end; yield the number of updates done after each one (and after each evaluated batch).

        On a GPU it also yields where it would wait for the device, with ``waiting`` set.
        """
        if self._update is None:
            step = UpdateStep(
                wrap(self.model, self.group),
                self.model,
                self.optimiser,
                self.runtime,
                self.group,
                self.plan.label_smoothing,
                self.plan.accumulate,
            )
            self._update = self.runtime.graphed(step, self.group.active)
        self.model.train()
        if self.step == 0 and self.epochs_done == 0:
            self.save()
        while self.epochs_done < self.schedule.epochs:
            if self.step < (self.epochs_done + 1) * self.schedule.steps_per_epoch:
                yield from self._train_epoch()
            yield from self._end_epoch()

    def run(self) -> None:
        """All of it at once."""
        for _ in self.steps():
            pass

    def _train_epoch(self) -> Iterator[int]:
        epoch_end = (self.epochs_done + 1) * self.schedule.steps_per_epoch
        every = self.plan.checkpoint_steps
        batches = self.train.epoch(self.epochs_done, self.schedule.steps_per_epoch - (epoch_end - self.step))
        with contextlib.closing(batches):  # on the way out, so that loader workers end with it
            yield from self._answer()  # a signal that came before the first step
            for images, labels in batches:
                self._enqueue(images, labels)
                yield from self._patience(self._mailbox.awaited())
                self._collect()
                if self.step < epoch_end:  # the end of an epoch has its own checkpoint, after the evaluation
                    yield from self._answer(due=every and self.step % every == 0)
                yield self.step

    def _enqueue(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        assert self._update is not None
        self.runtime.reseed(_mix(self.plan.seed, self.step, self.group.rank))
        optimisers.set_rate(self.optimiser, self.schedule.rate(self.step))
        rows = self._update(images, labels, self._requests())
        self.step += 1
        self._mailbox.post((self.step, self.epochs_done + 1), rows)

    def _end_epoch(self) -> Iterator[int]:
        yield from self._patience(self._mailbox.awaited(everything=True))
        self._collect(everything=True)
        epoch = self.epochs_done + 1
        line: dict[str, Any] = {"kind": "epoch", "step": self.step, "epoch": epoch, "train": self.whole_epoch.means()}
        last = epoch == self.schedule.epochs
        if self.test is not None and (last or epoch % self.plan.evaluate_epochs == 0):
            try:
                line["test"] = yield from self._evaluate(self.test)
            except DataError:  # the training of this epoch must not be lost with it
                self.journal.save(self.step, self.state())  # without the other ranks, which are not here
                raise
            if not self.best or line["test"]["error"] < self.best["error"]:
                self.best = {"error": line["test"]["error"], "epoch": epoch}
        observed = self.observer.look() if self.group.rank == 0 else Observation()
        line |= {"scalars": observed.scalars, "profiles": observed.profiles}
        self.journal.epoch(line)
        self.epochs_done, self.whole_epoch = epoch, Sums()
        every, steps = self.plan.checkpoint_epochs, self.plan.checkpoint_steps
        try:
            yield from self._answer(due=last or (every and epoch % every == 0) or (steps and self.step % steps == 0))
        finally:  # after the checkpoint: nobody may be reading
            self.journal.show_epoch(line, observed.columns, self.schedule.epochs)

    def _evaluate(self, test: Batches) -> Generator[int, None, dict[str, float]]:
        with contextlib.closing(self._evaluation.steps(test)) as events:
            for event in events:
                if self.group.active:
                    self._mailbox.post(None, self.group.gather(torch.cat([self._quiet.new_zeros(5), self._requests()])))
                    self._collect()
                if self._wishes()[0]:
                    yield from self._answer()
                yield from self._patience(event) if event else (self.step,)
        return self._evaluation.figures

    # -- requests and reports ----------------------------------------------------------------------------------------

    def _requests(self) -> torch.Tensor:
        """What this rank asks of all: the signal that it received, whether it wants a checkpoint."""
        if not self.group.active:
            return self._quiet  # nobody to tell
        return torch.tensor([self.signals.poll(), self._wants_save()], dtype=torch.float32, device=self.runtime.device)

    def _wants_save(self) -> bool:
        late = self.plan.checkpoint_seconds
        return bool(self.signals.save or (late and time.monotonic() - self._saved_at > late and self.group.rank == 0))

    def _wishes(self) -> tuple[int, int]:
        return self._asked if self.group.active else (self.signals.stop, int(self._wants_save()))

    def _patience(self, event: torch.cuda.Event | None) -> Iterator[int]:
        """Let the caller do something else until the device has reached the event."""
        if event is not None:
            self.waiting = event
            yield self.step
            self.waiting = None

    def _answer(self, due: Any = False) -> Iterator[int]:
        """Save where it is due or asked for; leave where a signal asked to."""
        stop, save = self._wishes()
        if due or stop or save:
            yield from self._patience(self._mailbox.awaited(everything=True))
            self.signals.save, self._asked = 0, (self._asked[0], 0)
            self.save()
        if stop := max(stop, self._asked[0]):
            raise Interrupted(stop, self.step)

    def _collect(self, everything: bool = False) -> None:
        """Take in the rows that have arrived: log them, keep what was asked, stop where one is not finite."""
        for tag, rows in self._mailbox.take(everything):
            reports = [Row(*values) for values in rows]
            stop, save = (int(max(getattr(r, name) for r in reports)) for name in ("stop", "save"))
            self._asked = (max(stop, self._asked[0]), max(save, self._asked[1]))
            if tag is not None:
                self._report(tag[0], tag[1], reports)

    def _report(self, step: int, epoch: int, reports: list[Row]) -> None:
        rate = self.schedule.rate(step - 1)
        if any(row.bad for row in reports):
            # Averaged gradients are bad on every rank: the rank to name is the one whose own loss is.
            rank = max(range(len(reports)), key=lambda r: (not math.isfinite(reports[r].loss), reports[r].bad))
            raise DivergedError(
                f"step {step}: loss {reports[rank].loss:g}, gradient norm {reports[rank].norm:g} on rank {rank} at "
                f"learning rate {rate:g}; stopped with the weights of step {step - 1}; {self.journal.last_saved()}; "
                "lower optimiser.lr or add schedule.warmup_epochs",
                step,
            )
        for row in reports:
            self.interval.add(row.loss, row.correct, row.count)
            self.whole_epoch.add(row.loss, row.correct, row.count)
        count = sum(row.count for row in reports)
        means = self.interval.means()
        self.journal.step(step, epoch, means["loss"], 1 - means["error"], count)
        if step % self.plan.log_steps == 0:
            self.journal.interval({"kind": "step", "step": step, "epoch": epoch, "lr": rate, **means})
            self.interval = Sums()


def _mix(seed: int, step: int, rank: int) -> int:
    """A seed of its own for every (seed, step, rank): the finaliser of splitmix64."""
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + rank * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return (value ^ (value >> 31)) >> 1
