"""What is known of jobs: the files that say which runs they have, the cluster that says whether they are still there.

How far a run is stands in its own folder, as ever. A job's file is written before the job is handed over, and whether
Slurm has it is asked by its name: a command that is killed in between, or that is given twice, submits nothing twice.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from timestepper import validate
from timestepper.engine.rundir import STATUS, is_here, lives, read_status
from timestepper.errors import ClusterError, DistributedError
from timestepper.runs.run import FAILED, FINISHED, INTERRUPTED, RUNNING, WAITING, Run
from timestepper.terminal import warn

SLURM, LOCAL = "slurm", "local"
QUEUED = "queued"
JOBS = "jobs"  # their folder, among those of the runs
_ON_NODE = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "STAGE_OUT", "SIGNALING")


@dataclass(frozen=True)
class Job:
    """The file of a job."""

    cluster: str
    runs: list[str]  # their folders, below the one of all runs
    id: str = ""  # Slurm's number or that of a process, where it is known
    host: str = ""  # and what else tells a local process from all others
    process: str = ""


def look(runs: Sequence[Run]) -> None:
    """Note in each run where it stands by its folder; :func:`note` adds what its job knows."""
    for run in runs:
        status = read_status(run.path) or {}
        run.state = state = status.get("state", WAITING)
        run.message = f"step {status.get('step', '?')} of {status.get('steps', '?')}" if status else ""
        if run.is_finished:
            run.message = f"test error {status.get('test_error', float('nan')):.2%}"
        elif state == FINISHED:
            run.state, run.message = FAILED, f"{run.path} holds another run"
        elif state == FAILED:
            run.message = str(status.get("error", run.message))
        elif state == "killed" or (state == RUNNING and not is_here(status)):  # unless its job says otherwise
            run.state = INTERRUPTED


def note(runs: Sequence[Run], out: Path, settled: Sequence[str] = (FINISHED, FAILED)) -> set[Run]:
    """Note in the runs what is known of their jobs, unless they are settled; returned are those in the hands of a job.

    The first of the ``settled`` states is that of finished runs, which no job has any more.
    """
    runs_at = {os.path.relpath(run.path, out): run for run in runs if run.state != settled[0]}
    jobs = {name: job for name, job in _read(out / JOBS).items() if not runs_at.keys().isdisjoint(job.runs)}
    alive = there(jobs)
    taken = {run for run in runs if run.state == RUNNING}  # by a process of this machine, whosever it is
    ended: dict[Run, str] = {}
    for name, job in jobs.items():
        for run in [runs_at[path] for path in job.runs if path in runs_at]:
            if name not in alive:
                ended[run] = name
                continue
            taken.add(run)
            state, where = alive[name]
            if state == QUEUED or run.state not in settled:
                run.state, run.message = state, ", ".join(filter(None, [run.message, where]))
    for name, job in jobs.items():  # one without a number was never submitted
        if job.id:
            _tell_of(job, [run for run in ended if ended[run] == name and run not in taken], out / JOBS, name)
    return taken


def _tell_of(job: Job, runs: Sequence[Run], folder: Path, name: str) -> None:
    """Name the runs of a job that has ended and never touched them, and where to look for the reason.

    Those that it could not begin have failed. The others it did not come to: it was stopped, or killed.
    """
    began = _written(folder / f"{name}.json")
    untouched = [run for run in runs if _written(run.path / STATUS) < began]
    log = folder / f"{job.id}_0_log.out"
    silent = job.cluster == SLURM and not log.exists()
    words = log.read_text("utf-8", "replace") if log.exists() else ""
    for run in untouched:
        if run.state in (WAITING, INTERRUPTED):
            run.state = FAILED if silent or f"{run.label}: {FAILED}: " in words else INTERRUPTED
        again = "; the same command goes on" if run.state == INTERRUPTED else ""
        run.message = f"job {job.id} has ended without it{again}"
    if untouched:
        hint = f"it left no word in {folder}: do the nodes share that folder?" if silent else f"see {log}"
        warn(f"job {job.id} has ended without {', '.join(run.label for run in untouched)}; {hint}")


def there(jobs: Mapping[str, Job]) -> dict[str, tuple[str, str]]:
    """The jobs that have not ended, by name: queued or running, and in words."""
    local = {name: job for name, job in jobs.items() if job.cluster == LOCAL}
    found = {
        name: (RUNNING, f"job {job.id} on this machine")
        for name, job in local.items()
        if job.id.isdecimal()
        and len(job.id) < 20
        and lives({"host": job.host, "pid": int(job.id), "process": job.process})
    }
    if len(local) < len(jobs):
        for line in ask("squeue", "--me", "--noheader", "--format=%i|%T|%r|%j"):
            number, state, reason, name = line.split("|", 3)
            if name in jobs:
                why = "" if reason == "None" else f" ({reason})"
                found[name] = (RUNNING if state in _ON_NODE else QUEUED, f"job {number}{why}")
    return found


def ask(*command: str) -> list[str]:
    """The lines that a command of Slurm's prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    except FileNotFoundError:
        advice = "run this where one can submit jobs, or with --cluster local"
        raise ClusterError(f"there is no Slurm on this machine: {command[0]} is not found; {advice}") from None
    except subprocess.TimeoutExpired:
        raise DistributedError("Slurm does not answer; try again later") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise DistributedError(f"Slurm does not answer ({reason[:200]}); try again later")
    return done.stdout.splitlines()


def _read(folder: Path) -> dict[str, Job]:
    """All jobs by name, the oldest first; a damaged file is named."""
    found: dict[str, Job] = {}
    for path in sorted(folder.glob("timestepper-*.json"), key=os.path.getmtime):
        source = validate.Source(path, ClusterError, "remove it")
        try:
            found[path.stem] = validate.build(Job, validate.read(path, source), source, extra=True)
        except ClusterError as error:
            warn(error)
    return found


def _written(path: Path) -> float:
    """When a file was written; 0 where there is none."""
    return path.stat().st_mtime if path.exists() else 0.0
