"""Bring sets of runs to their end: train what has no record, go on with what was interrupted, skip what is done."""

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from timestepper import records
from timestepper.engine.rundir import is_here, read_status
from timestepper.engine.signals import Signals, leaving
from timestepper.errors import DataError, Leave, RecordError, TimestepperError
from timestepper.recipe.load import as_dict, identity, import_controller
from timestepper.records.diverged import Diverged, skipped
from timestepper.records.record import Record
from timestepper.records.subject import subject_of
from timestepper.runs.run import FAILED, INTERRUPTED, RUNNING, WAITING, Run
from timestepper.runs.start import widen_device_queue
from timestepper.sweeps.plan import Shared, by_the_clock, has_images
from timestepper.terminal import complain, tell

DONE, UNRECORDED, MISSING, DIVERGED = "done", "finished, to be recorded", "missing", "diverged"
SETTLED = (DONE, DIVERGED)  # nothing is to be trained
OCCUPIED = "missing, its folder holds another run"
UNMEASURED = "recorded without"  # what follows is in the message; the weights to measure it on are gone
_TO_TRAIN = (MISSING, INTERRUPTED, WAITING, RUNNING)  # of one that is running, the lock of its folder is the judge
TO_RECORD = (UNRECORDED, *_TO_TRAIN)  # the end of these will be a record


def plan(runs: Sequence[Run], known: Sequence[Record], diverged: Sequence[Diverged] = ()) -> None:
    """Note in each run where it stands, where some have records already, and how many hours are still expected.

    Done; finished but not recorded or measured; recorded without a measurement that can no longer be made;
    running in another process; diverged; interrupted; or missing, maybe with another run in its place.
    """
    dataset = Shared().dataset
    recorded, failed = (
        [(identity(each.recipe), each) for each in found if not each.changed] for found in (known, diverged)
    )
    spent = _spent(known)
    for run in runs:
        record = _own(run, recorded, dataset)
        lacking = [name for name in run.measures if record and getattr(record, name) is None]
        finished = (run.path / records.RECORD).exists()
        hours = _expected(run, spent)
        run.hours, run.message = 0.0, ""
        if record and not lacking:
            run.state = DONE
        elif finished and not _is_foreign(run, dataset):
            run.state, run.message = UNRECORDED, f"with {', '.join(lacking)}" if record else ""
        elif record:
            run.state, run.message = UNMEASURED, ", ".join(lacking)
        elif (lost := _own(run, failed, dataset)) is not None:
            run.state, run.message = DIVERGED, f"at update {lost.step}"
        elif finished:
            run.state, run.hours = OCCUPIED, hours
        elif (status := read_status(run.path)) is not None:
            share = _share(status)
            # Of a run elsewhere nobody knows whether it still goes on.
            run.state = RUNNING if status["state"] == "running" and is_here(status) else INTERRUPTED
            run.hours, run.message = hours * (1 - share), f"{share:.0%}"
        else:
            run.state, run.hours = MISSING, hours


def _share(status: Mapping[str, Any]) -> float:
    """How much of a run is done, from 0 to 1 whatever somebody has written into its status."""
    step, steps = status.get("step", 0), status.get("steps", 0)
    return min(max(step, 0), steps) / steps if steps > 0 else 0.0


def _own(run: Run, found: Sequence[tuple[str, Any]], dataset: Callable) -> Any:
    """What there is of a run among records with their identities."""
    own = run.identity
    return next((each for told, each in found if told == own and has_images(run, each.data_sha256, dataset)), None)


def _is_foreign(run: Run, dataset: Callable) -> bool:
    """Whether its folder holds the record of another run; one that cannot be read is named when it is used."""
    try:
        found = records.read(run.path)
    except RecordError:
        return False
    recipe = found.get("recipe")
    mine = isinstance(recipe, dict) and identity(recipe) == run.identity and not found.get("changed")
    return not mine or not has_images(run, found.get("data_sha256", ""), dataset)


def _spent(known: Sequence[Record]) -> dict[tuple, list[float]]:
    """Hours of a GPU for an epoch, by kind of run; no run on a CPU has any."""
    found: dict[tuple, list[float]] = {}
    for record in known:
        if record.gpu_seconds is not None:
            found.setdefault(_kind(record.recipe), []).append(record.gpu_seconds / len(record.loss) / 3600)
    return found


def _expected(run: Run, spent: Mapping[tuple, Sequence[float]]) -> float:
    """Hours of one run: the number of the set's file, or less where such runs have usually had less of a GPU's time.

    Never more, and never the time by the clock: nearly all runs shared their card, with runs of other processes too.
    """
    alike = spent.get(_kind(as_dict(run.recipe)))
    return min(run.hours, median(alike) * run.recipe.run.epochs) if alike else run.hours


def _kind(recipe: Mapping[str, Any]) -> tuple:
    """What the time of an epoch depends on."""
    return recipe["model"]["name"], recipe["data"]["name"], recipe["data"]["batch_size"], subject_of(recipe).kind


def bring_to_end(
    runs: Sequence[Run],
    results: Path,
    *,
    jobs: int = 1,
    checkpoint_seconds: float | None = None,
    debug: bool = False,
) -> int:
    """Train and measure what is not done; the exit code. A run that fails does not keep the others from running.

    With more than one of ``jobs``, so many runs at a time are trained as in a sweep, and each is measured beside the
    others when it has ended.
    ``checkpoint_seconds`` and ``debug`` are for these; None keeps the recipes' own rhythm of checkpoints.
    """
    lost: set[str] = set()  # data sets, each told once
    if failed := sum(run.state == DIVERGED for run in runs):
        tell(skipped(failed, len(runs), results))
    to_train = [run for run in runs if run.state in _TO_TRAIN]
    for run in to_train:
        run.results = results
    widen_device_queue([run.recipe for run in to_train], jobs)
    if jobs > 1 and to_train and (stop := _train_together(to_train, jobs, checkpoint_seconds, debug, lost)):
        return 128 + stop
    for number, run in enumerate(runs, 1):
        recorded = (run.path / records.RECORD).exists()  # what could not be measured beside the others may be alone
        if run.state in SETTLED or run.recipe.data.name in lost or (run.state == FAILED and not recorded):
            continue
        if run.state not in (OCCUPIED, UNMEASURED) and recorded:  # maybe since just now
            run.state, run.message = UNRECORDED, ""
        tell(f"[{number}/{len(runs)}] {run.path.name}: {run.state} {run.message}".rstrip())
        try:
            code = _finish(run, results)
        except TimestepperError as error:
            _fail(run, error, lost)
            continue
        if code:
            return code
    return 1 if any(run.state == FAILED for run in runs) else 0


def _fail(run: Run, error: TimestepperError | str, lost: set[str]) -> None:
    complain(f"{run.path}: {error}")
    run.state, run.message = FAILED, str(error)
    if isinstance(error, DataError):
        lost.add(run.recipe.data.name)


def _train_together(
    runs: Sequence[Run], jobs: int, checkpoint_seconds: float | None, debug: bool, lost: set[str]
) -> int:
    """Train what has to be trained, where :func:`_finish` finds it; the signal that asked to stop, or 0."""
    signals = Signals().install()
    try:
        from timestepper.sweeps import one_gpu

        shared = Shared()
        ready = [run for run in runs if _has_data(run, shared, lost)]
        if ready:
            tell(f"training {len(ready)} runs, {jobs} at a time")
            for run in ready:
                if checkpoint_seconds is not None:
                    run.recipe = by_the_clock(run.recipe, checkpoint_seconds)
            one_gpu.sweep(ready, signals, jobs=jobs, debug=debug, shared=shared)
            for run in ready:
                if run.state == FAILED:
                    complain(f"{run.path}: {run.message}")
    finally:
        signals.restore()
    if signals.stop:
        name = signal.Signals(signals.stop).name
        tell(f"stopped by {name}; all runs are saved, and the same command goes on from there", error=True)
    return signals.stop


def _has_data(run: Run, shared: Shared, lost: set[str]) -> bool:
    """Open its data set for all runs before the first one begins: each of them would say that it is missing."""
    from timestepper.engine.runtime import choose_device

    if run.recipe.data.name in lost:
        return False
    try:
        shared.dataset(run.recipe, choose_device(run.recipe.runtime.device))
    except DataError as error:
        _fail(run, error, lost)
        return False
    except Exception:
        pass  # not the data's fault (no GPU, no memory): the run itself will fail with it, and leave the others alone
    return True


def _finish(run: Run, results: Path) -> int:
    """Train it where that is missing, measure and record it; the exit code of a training that was stopped."""
    from timestepper.runs.start import train

    if run.state == UNMEASURED:
        tell(
            f"its record lacks {run.message}, and {run.path}, which has the weights, is gone; "
            "remove the record to train it again",
            error=True,
        )
        return 0
    if run.state == OCCUPIED:
        raise RecordError(
            f"{run.path / records.RECORD}: the record of a run with other settings or images; move {run.path} away and "
            "run the same command again"
        )
    if not (run.path / records.RECORD).exists() and (code := train(run)):
        return code
    try:
        from timestepper.runs.measure import complete  # some seconds too, in which one may be stopped

        import_controller(run.recipe, run.path)
        with leaving():
            complete(run.path, results, run.measures, run.recipe)
    except (KeyboardInterrupt, Leave) as stop:
        tell(
            f"stopped while measuring; {run.path} is finished and saved, and the same command goes on with measuring",
            error=True,
        )
        return int(stop.code or 0) if isinstance(stop, Leave) else 128 + signal.SIGINT
    return 0
