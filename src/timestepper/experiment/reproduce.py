"""Bring sets of runs to their end: train what has no record, go on with what was interrupted, skip what is done."""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timestepper import records
from timestepper.engine.rundir import is_here, read_status
from timestepper.engine.signals import Signals
from timestepper.errors import DataError, RecordError, TimestepperError
from timestepper.experiment.sets import Wanted, identity
from timestepper.experiment.sweep_plan import Entry, by_the_clock
from timestepper.records.record import Record
from timestepper.terminal import complain, tell

if TYPE_CHECKING:
    from timestepper.experiment.sweep import Shared

DONE, FINISHED, RUNNING, INTERRUPTED, MISSING = "done", "finished, to be recorded", "running", "interrupted", "missing"
OCCUPIED = "missing, its folder holds another run"
UNMEASURED = "recorded without"  # what follows is in the progress; the weights to measure it on are gone
_TO_TRAIN = (MISSING, INTERRUPTED, RUNNING)  # of one that is running, the lock of its folder is the judge


@dataclass(frozen=True)
class Step:
    """A wanted run and where it stands.

    Done; finished but not recorded or measured; recorded without a measurement that can no longer be made;
    running in another process; interrupted; or missing, maybe with another run in its place.
    """

    wanted: Wanted
    state: str
    run: Path
    hours: float  # that are still expected
    progress: str = ""

    @property
    def to_record(self) -> bool:
        """Whether its end will be a record."""
        return self.state in (FINISHED, *_TO_TRAIN)


def plan(wanted: Iterable[Wanted], known: Sequence[Record], runs: Path) -> list[Step]:
    """Where each run stands, where some have records already."""
    by_identity = {identity(record.recipe): record for record in known}
    steps = []
    for item in wanted:
        run = runs / item.folder
        record = by_identity.get(item.identity)
        lacking = [name for name in item.measures if record and getattr(record, name) is None]
        hours = _expected(item, known)
        finished = (run / records.RECORD).exists()
        if record and not lacking:
            steps.append(Step(item, DONE, run, 0.0))
        elif finished and not _is_foreign(item, run):
            steps.append(Step(item, FINISHED, run, 0.0))
        elif record:
            steps.append(Step(item, UNMEASURED, run, 0.0, ", ".join(lacking)))
        elif finished:
            steps.append(Step(item, OCCUPIED, run, hours))
        elif (status := read_status(run)) is not None:
            share = _share(status)
            # Of a run elsewhere nobody knows whether it still goes on.
            state = RUNNING if status["state"] == "running" and is_here(status) else INTERRUPTED
            steps.append(Step(item, state, run, hours * (1 - share), f"{share:.0%}"))
        else:
            steps.append(Step(item, MISSING, run, hours))
    return steps


def _share(status: Mapping[str, Any]) -> float:
    """How much of a run is done, from 0 to 1 whatever somebody has written into its status."""
    step, steps = status.get("step", 0), status.get("steps", 0)
    return min(max(step, 0), steps) / steps if steps > 0 else 0.0


def _is_foreign(wanted: Wanted, run: Path) -> bool:
    """Whether a run directory holds the record of another run; one that cannot be read is named when it is used."""
    try:
        recipe = records.read(run).get("recipe")
    except RecordError:
        return False
    return not isinstance(recipe, dict) or identity(recipe) != wanted.identity


@dataclass
class _Trouble:
    """Runs that failed and data sets that are missing, each told once."""

    runs: set[Path] = field(default_factory=set)
    data: set[str] = field(default_factory=set)

    def tell(self, step: Step, error: TimestepperError | str) -> None:
        complain(f"{step.run}: {error}")
        self.runs.add(step.run)
        if isinstance(error, DataError):
            self.data.add(step.wanted.recipe.data.name)

    def concerns(self, step: Step) -> bool:
        return step.run in self.runs or step.wanted.recipe.data.name in self.data


def bring_to_end(
    steps: Sequence[Step],
    results: Path,
    *,
    jobs: int = 1,
    checkpoint_seconds: float | None = None,
    debug: bool = False,
) -> int:
    """Train and measure what is not done; the exit code. A run that fails does not keep the others from running.

    With more than one of ``jobs``, so many runs at a time are trained as in a sweep, and then all are measured.
    ``checkpoint_seconds`` and ``debug`` are for these; None keeps the recipes' own rhythm of checkpoints.
    """
    trouble = _Trouble()
    if jobs > 1 and (stop := _train_together(steps, jobs, checkpoint_seconds, debug, trouble)):
        return 128 + stop
    for number, step in enumerate(steps, 1):
        if step.state == DONE or trouble.concerns(step):
            continue
        trained = step.state in _TO_TRAIN and (step.run / records.RECORD).exists()  # just now, beside others
        state = FINISHED if trained else f"{step.state} {step.progress}".rstrip()
        tell(f"[{number}/{len(steps)}] {step.run.name}: {state}")
        try:
            code = _finish(step, results)
        except TimestepperError as error:
            trouble.tell(step, error)
            continue
        if code:
            return code
    return 1 if trouble.runs else 0


def _train_together(
    steps: Sequence[Step], jobs: int, checkpoint_seconds: float | None, debug: bool, trouble: _Trouble
) -> int:
    """Train what has to be trained, where :func:`_finish` finds it; the signal that asked to stop, or 0."""
    missing = [step for step in steps if step.state in _TO_TRAIN]
    if not missing:
        return 0
    signals = Signals().install()
    try:
        from timestepper.experiment import sweep as sweeping

        shared = sweeping.Shared()
        ready = {step.run: step for step in missing if _has_data(step, shared, trouble)}
        if ready:
            tell(f"training {len(ready)} runs, {jobs} at a time")
            entries = [_entry(step, checkpoint_seconds) for step in ready.values()]
            for run in sweeping.sweep(entries, signals, sweeping.Options(jobs, debug=debug), shared=shared):
                if run.outcome == "failed":
                    trouble.tell(ready[run.entry.path], run.message)
    finally:
        signals.restore()
    if signals.stop:
        name = signal.Signals(signals.stop).name
        tell(f"stopped by {name}; all runs are saved, and the same command goes on from there", error=True)
    return signals.stop


def _has_data(step: Step, shared: "Shared", trouble: _Trouble) -> bool:
    """Open its data set for all runs before the first one begins: each of them would say that it is missing."""
    from timestepper.engine.runtime import choose_device

    if trouble.concerns(step):
        return False
    recipe = step.wanted.recipe
    try:
        shared.dataset(recipe, choose_device(recipe.runtime.device))
    except DataError as error:
        trouble.tell(step, error)
        return False
    except Exception:
        pass  # not the data's fault (no GPU, no memory): the run itself will fail with it, and leave the others alone
    return True


def _entry(step: Step, checkpoint_seconds: float | None) -> Entry:
    recipe = step.wanted.recipe
    if checkpoint_seconds is not None:
        recipe = by_the_clock(recipe, checkpoint_seconds)
    return Entry(step.run.name, step.wanted.name, recipe, step.run)


def _finish(step: Step, results: Path) -> int:
    from timestepper.experiment.start import start

    if step.state == UNMEASURED:
        tell(
            f"its record lacks {step.progress}, and {step.run}, which has the weights, is gone; "
            "remove the record to train it again",
            error=True,
        )
        return 0
    if step.state == OCCUPIED:
        raise RecordError(
            f"{step.run / records.RECORD}: the record of a run with other settings; move {step.run} away and run the "
            "same command again"
        )
    if not (step.run / records.RECORD).exists():
        code = start(step.wanted.recipe, name=step.wanted.name, run_dir=step.run)
        if code:
            return code
    try:
        from timestepper.experiment.measure import complete  # some seconds too, in which one may be stopped

        complete(step.run, results, step.wanted.measures)
    except KeyboardInterrupt:
        tell(
            f"stopped while measuring; {step.run} is finished and saved, and the same command goes on with measuring",
            error=True,
        )
        return 128 + signal.SIGINT
    return 0


def _expected(wanted: Wanted, known: Sequence[Record]) -> float:
    """Hours of one run: per epoch what the fastest such run on a GPU took, else the number of the set's file.

    The fastest, because most share their GPU with others, as many as the sweep that trained them had jobs.
    """
    data, model = wanted.recipe.data, wanted.recipe.model.name
    like = (model, data.name, data.batch_size)
    alike = [
        (record.gpu_seconds or record.wall_seconds) / len(record.loss)
        for record in known
        if (record.recipe["model"]["name"], record.recipe["data"]["name"], record.recipe["data"]["batch_size"]) == like
        and not record.device.startswith("CPU")
    ]
    return min(alike) * wanted.recipe.run.epochs / 3600 if alike else wanted.hours
