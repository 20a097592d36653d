"""How a group of runs becomes a job of a cluster, through submitit.

A job does what a sweep does on one GPU. Where the cluster says that its time is over, it saves, stops and queues itself
again; after any other end the same command goes on with what is left. What becomes of jobs is asked in ``jobs``.
"""

import contextlib
import fcntl
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from timestepper import records, validate
from timestepper.engine.rundir import birth, read_status
from timestepper.errors import ClusterError
from timestepper.files import explain, make_folder, open_own, write_json
from timestepper.runs.run import FAILED, Run
from timestepper.sweeps.jobs import JOBS, LOCAL, SLURM, Job, ask, note, there
from timestepper.terminal import tell, warn

NEEDLESS = 3  # times in a row that a job is queued again although nothing has moved
SIGNAL_SECONDS = 90  # before the end of its time a job is told
_FOREVER = 10**6
_SBATCH = (  # options of sbatch that make sense for a job of one process
    *("account", "comment", "constraint", "cpus_per_gpu", "cpus_per_task", "exclude", "gpus_per_node"),
    *("gres", "licenses", "mail_type", "mail_user", "mem", "mem_per_cpu", "mem_per_gpu", "nice", "nodelist"),
    *("partition", "qos", "reservation", "time"),
)
OPTIONS = {SLURM: (*_SBATCH, "setup", "signal_delay_s"), LOCAL: ("time", "signal_delay_s")}


# -- in the job --------------------------------------------------------------------------------------------------------


class Assignment:
    """What a job does: ``work`` with its runs, which gives an exit code; submitit calls it, on the node."""

    def __init__(
        self, runs: Sequence[Run], work: Callable[[list[Run]], int], environment: Mapping[str, str], idle: int = 0
    ):
        self.runs, self.work, self.environment, self.idle = list(runs), work, environment, idle
        self._before: list[Any] = []

    def __call__(self) -> None:
        parent = str(os.getppid())
        if os.environ.get("SUBMITIT_LOCAL_JOB_ID", parent) != parent:
            sys.exit("the job was killed before it began")  # and may have been given again; later, Signals notice it
        os.environ.update(self.environment)
        self._before = _positions(self.runs)
        code = self.work(self.runs)
        if code == 128 + signal.SIGUSR2 or (code > 128 and "SLURM_JOB_ID" in os.environ):
            signal.raise_signal(signal.SIGUSR2)  # all is saved; submitit, whose signal it is again, calls checkpoint()
        sys.exit(code)

    def checkpoint(self) -> Any:
        """What the job does when it is its turn again; None where it shall not be queued again."""
        from submitit.helpers import DelayedSubmission

        idle = 0 if _positions(self.runs) != self._before else self.idle + 1
        if idle >= NEEDLESS:
            warn(f"no run got any further, {idle} times in a row: not queued again; give it more time")
            return None
        number = os.environ.get("SLURM_JOB_ID")
        if number and ask("squeue", "--noheader", "--jobs", number, "--format=%T") != ["RUNNING"]:
            return None  # somebody has cancelled it
        left = [run for run in self.runs if run.state != FAILED]  # would fail again
        return DelayedSubmission(Assignment(left, self.work, self.environment, idle))


def _positions(runs: Sequence[Run]) -> list[Any]:
    """What moves when a run gets further."""
    files = [run.path / records.RECORD for run in runs]
    steps = [(read_status(run.path) or {}).get("step") for run in runs]
    return [*steps, *(file.stat().st_mtime if file.exists() else 0 for file in files)]


# -- submitting --------------------------------------------------------------------------------------------------------


def parse_options(cluster: str, texts: Sequence[str]) -> dict[str, str]:
    """``key=value`` each; names as sbatch has them, with ``-`` or ``_``."""
    options: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if name not in OPTIONS[cluster]:
            raise ClusterError(f"--cluster-option {text}: not known{validate.suggest(name, OPTIONS[cluster])}")
        if not value or not value.isprintable():
            raise ClusterError(f"--cluster-option {text}: write it as {name}=VALUE")
        options[name] = value
    for name in ("signal_delay_s", *(["time"] if cluster == LOCAL else [])):
        if name in options and not options[name].isdecimal():
            unit = "minutes" if name == "time" else "seconds"
            raise ClusterError(f"--cluster-option {name}={options[name]}: not a whole number of {unit}")
    if cluster == SLURM and "time" not in options:
        raise ClusterError("Slurm wants to know how long a job may take: --cluster-option time=4:00:00, for example")
    if options.get("gpus_per_node", "1") not in ("0", "1"):
        raise ClusterError("--cluster-option gpus_per_node: a job is runs that share one GPU; give 1, or 0 for none")
    return options


def submit(
    runs: Sequence[Run],
    out: Path,
    work: Callable[[list[Run]], int],
    *,
    cluster: str,
    options: Mapping[str, str],
    jobs: int,
    processes: int | None = None,
) -> None:
    """Hand over the runs that no job has: ``processes`` groups, by default of ``jobs`` runs, locally one for a GPU."""
    from timestepper.sweeps.several_gpus import device, shares

    folder = out.absolute() / JOBS
    if "%" in str(folder):
        raise ClusterError(f"{folder}: Slurm takes a % for more than it is; choose a folder without")
    if any(run.path.absolute().is_relative_to(folder) for run in runs):
        raise ClusterError(f"{folder} is for the files of jobs, not for runs; give the recipe another name than {JOBS}")
    make_folder(folder)
    with _alone(folder):
        if cluster == SLURM:
            ask("squeue", "--me")  # whether it answers at all
        taken = note(runs, out)
        left = [replace(run, path=run.path.absolute()) for run in runs if run not in taken]
        parts = shares(left, processes or (-(-len(left) // jobs) if cluster == SLURM else None)) if left else []
        for number, part in enumerate(parts):
            own = device(number, len(parts), (processes or 1) > 1) if cluster == LOCAL else {}
            group = Assignment(part, work, own)
            try:
                job = _hand_over(group, folder, cluster, options)
            except ClusterError as error:
                done = f"; the {number} jobs before it are submitted" if number else "; nothing was submitted"
                raise ClusterError(f"{error}{done}") from error
            tell(f"job {job.id}: {', '.join(run.label for run in part)}")


def _hand_over(group: Assignment, folder: Path, cluster: str, options: Mapping[str, str]) -> Job:
    name = f"timestepper-{uuid.uuid4().hex[:12]}"
    executor = _executor(group.runs, folder, name, cluster, options)
    job = Job(cluster, [os.path.relpath(run.path, folder.parent) for run in group.runs])
    write_json(folder / f"{name}.json", asdict(job))
    try:
        with _detached():
            job = replace(job, id=executor.submit(group).job_id)
    except Exception as error:
        if name not in there({name: job}):  # an answer that came too late may mean that it is
            (folder / f"{name}.json").unlink()
        reason = str(error).strip().rpartition("\n")[2].removeprefix("sbatch: error: ")
        own = executor.parameters.get("additional_parameters", {})
        asked = ", ".join(f"{key}={value}" for key, value in own.items() if value is not True)
        raise ClusterError(
            f"{cluster} does not take a job ({asked}): {reason[:300] or type(error).__name__}"
        ) from error
    if cluster == LOCAL:
        job = replace(job, host=socket.gethostname(), process=birth(int(job.id)))
    write_json(folder / f"{name}.json", asdict(job))
    return job


def _executor(runs: Sequence[Run], folder: Path, name: str, cluster: str, options: Mapping[str, str]) -> Any:
    os.environ["SUBMITIT_PREEMPT_SIGNAL"] = "USR2"  # one that training understands
    import submitit

    delay = int(options.get("signal_delay_s", SIGNAL_SECONDS))
    if cluster == LOCAL:
        minutes = int(options.get("time", 0))
        if 0 < 60 * minutes <= delay:
            raise ClusterError(f"--cluster-option time={minutes}: less than signal_delay_s, which is {delay} seconds")
        local = submitit.LocalExecutor(folder, max_num_timeout=_FOREVER)
        local.update_parameters(timeout_min=minutes or _FOREVER, signal_delay_s=delay)
        return local
    own = {key: value for key, value in options.items() if key in _SBATCH}
    if own.get("gpus_per_node") == "0":
        del own["gpus_per_node"]
    elif "gres" not in own and any(run.recipe.runtime.device != "cpu" for run in runs):
        own["gpus_per_node"] = "1"
    cores = [f"--cpus-per-task={own['cpus_per_task']}"] if "cpus_per_task" in own else None  # srun inherits it no more
    slurm = submitit.SlurmExecutor(folder, max_num_timeout=_FOREVER)
    slurm.update_parameters(
        job_name=name,
        signal_delay_s=delay,
        setup=[options["setup"]] if "setup" in options else None,
        srun_args=cores,
        additional_parameters={key.replace("_", "-"): value for key, value in own.items()} | {"requeue": True},
    )
    return slurm


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two commands at the same time would both submit: the second waits."""
    try:
        lock = open_own(folder / "lock")
        fcntl.lockf(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise explain(error, folder / "lock") from error
    with lock:
        yield


@contextlib.contextmanager
def _detached() -> Iterator[None]:
    """A local job outlives this command: it must not hold its terminal, or the pipes that others read from."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    kept = {number: os.dup(number) for number in (0, 1, 2) if os.path.exists(f"/dev/fd/{number}")}
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for number in kept:
            os.dup2(null, number)
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(null)
        signal.signal(signal.SIGHUP, before)
