"""Bring sets of runs to their end: train what has no record, go on with what was interrupted, skip what is done."""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper.engine.rundir import read_status
from timestepper.errors import DataError, TimestepperError
from timestepper.experiment import record
from timestepper.experiment.sets import Wanted, identity

DONE, FINISHED, INTERRUPTED, MISSING = "done", "finished, to be recorded", "interrupted", "missing"


@dataclass(frozen=True)
class Step:
    """A wanted run and where it stands: done, finished but not recorded or measured, interrupted, or missing."""

    wanted: Wanted
    state: str
    run: Path
    hours: float  # that are still expected
    progress: str = ""


def plan(wanted: Iterable[Wanted], records: Sequence[Mapping[str, Any]], runs: Path) -> list[Step]:
    """Where each run stands. ``records`` are the contents of sound result files."""
    by_identity = {identity(content["recipe"]): content for content in records}
    steps = []
    for item in wanted:
        run = runs / item.folder
        content = by_identity.get(item.identity)
        hours = _expected(item, records)
        if content is not None and all(name in content for name in item.measures):
            steps.append(Step(item, DONE, run, 0.0))
        elif content is not None or (run / record.RECORD).exists():
            steps.append(Step(item, FINISHED, run, 0.0))
        else:
            status = read_status(run) or {}
            share = status.get("step", 0) / max(1, status.get("steps", 1))
            state = INTERRUPTED if status else MISSING
            steps.append(Step(item, state, run, hours * (1 - share), f"{share:.0%}" if status else ""))
    return steps


def bring_to_end(steps: Sequence[Step], results: Path) -> int:
    """Train and measure what is not done; the exit code. A run that fails does not keep the others from running."""
    failures = 0
    without_data: set[str] = set()
    for number, step in enumerate(steps, 1):
        if step.state == DONE or step.wanted.recipe.data.name in without_data:
            continue
        print(f"[{number}/{len(steps)}] {step.run.name}: {step.state}", flush=True)
        try:
            code = _finish(step, results)
        except TimestepperError as error:
            failures += 1
            print(f"error: {step.run}: {error}", file=sys.stderr)
            if isinstance(error, DataError):
                without_data.add(step.wanted.recipe.data.name)
            continue
        if code:
            return code
    return 1 if failures else 0


def _finish(step: Step, results: Path) -> int:
    from timestepper.experiment.measure import complete
    from timestepper.experiment.start import start

    if not (step.run / record.RECORD).exists():
        if step.state == FINISHED:
            print(
                f"its record lacks {', '.join(step.wanted.measures)}, and {step.run}, which has the weights, is gone; "
                "remove the record to train it again",
                file=sys.stderr,
            )
            return 0
        code = start(step.wanted.recipe, name=step.wanted.name, run_dir=step.run)
        if code:
            return code
    complete(step.run, results, step.wanted.measures)
    return 0


def _expected(wanted: Wanted, records: Sequence[Mapping[str, Any]]) -> float:
    """Hours of one run: what runs of this network took per epoch on a GPU, else the number of the set's file."""
    recipe = wanted.recipe
    alike = [
        content
        for content in records
        if content["recipe"]["model"]["name"] == recipe.model.name
        and content["recipe"]["data"]["name"] == recipe.data.name
        and content["recipe"]["data"]["batch_size"] == recipe.data.batch_size
        and not content["device"].startswith("CPU")
    ]
    if not alike:
        return wanted.hours
    per_epoch = statistics.median(content["wall_seconds"] / content["recipe"]["run"]["epochs"] for content in alike)
    return per_epoch * recipe.run.epochs / 3600


def contents(paths: Iterable[str]) -> list[dict[str, Any]]:
    """The contents of result files that a reader has found sound."""
    return [json.loads(Path(path).read_text()) for path in paths]
