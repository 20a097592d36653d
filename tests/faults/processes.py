"""Real processes for the fault tests: started, watched, signalled and always cleaned up.

Importing torch takes seconds, so :func:`command` forks from a server process that has imported everything and done
nothing: the child is a process of its own that runs the command line's ``main`` and can be killed like any other.
:func:`fresh_command` starts the interpreter anew, where the start itself is what is looked at.
"""

import functools
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOBODY = 65534
_DEFAULT = "fork"  # Python's own choice up to 3.13
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "torch._dynamo",
        "torch._inductor.config",
        "torch.distributed.run",
        "torch.utils.tensorboard",
        "torchvision.transforms.v2",
        "sklearn.datasets",
        "timestepper.adapters.native",
        "timestepper.cli",
        "timestepper.experiment.run",
        "timestepper.data.digits",
        "timestepper.data.folder",
        "timestepper.data.resident",
        "timestepper.data.streamed",
    ]
)
_numbers = itertools.count()
Preparation = Callable[[], object]


class Job:
    """A running process, the leader of its own process group, with its output in files."""

    def __init__(self, pid: int, wait: Callable[[float], int | None], output: Path):
        self.pid = pid
        self.started = time.monotonic()
        self._wait = wait
        self._output = output
        self._offspring: set[int] = set()

    @property
    def stdout(self) -> str:
        return self._output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self._output.with_suffix(".err").read_text()

    def poll(self) -> int | None:
        """The exit code, None while it runs; minus the signal's number where one killed it."""
        return self._wait(0)

    def wait(self, seconds: float = 120) -> int:
        """The exit code; an error where the process does not end in time."""
        code = self._wait(seconds)
        assert code is not None, f"process {self.pid} still runs after {seconds} s\n{self.stdout}\n{self.stderr}"
        return code

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group as a terminal does."""
        (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> int:
        """SIGKILL to the process alone; its exit code."""
        if self.poll() is None:
            self.send(signal.SIGKILL)
        return self.wait(30)

    def offspring(self) -> list[int]:
        """Its living descendants; they are remembered, because those of a killed process cannot be found any more."""
        found = descendants(self.pid)
        self._offspring.update(found)
        return found

    def kill_all(self) -> None:
        """SIGKILL to the process and all its descendants, as a machine that loses power does."""
        for pid in [self.pid, *self.offspring()]:
            _kill(pid)
        self.wait(30)

    def survivors(self) -> list[int]:
        """Who is still there of the process, its group and all descendants that were ever seen."""
        return [pid for pid in {self.pid, *members(self.pid), *self._offspring} if alive(pid)]

    def clean(self) -> None:
        """End whatever is left of it."""
        self.offspring()
        for pid in self.survivors():
            _kill(pid)
        self._wait(30)


def _child(main: Callable[[], None], output: Path, env: Mapping[str, str], prepare: Preparation | None) -> None:
    os.setsid()
    multiprocessing.set_start_method(_DEFAULT, force=True)  # the server's children would fork from servers themselves
    for number, suffix in ((1, ".out"), (2, ".err")):
        descriptor = os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(env)
    if prepare is not None:
        prepare()
    main()


def run_command(arguments: list[str]) -> None:
    """What ``timestepper ARGUMENTS`` does."""
    from timestepper.cli import main

    sys.argv = ["timestepper", *arguments]
    main()


def run_torchrun(arguments: list[str]) -> None:
    """What ``torchrun ARGUMENTS`` does."""
    from torch.distributed.run import main

    main(arguments)


def fork(
    main: Callable[[], None], folder: Path, env: Mapping[str, str] | None = None, prepare: Preparation | None = None
) -> Job:
    """Run a function in a process of its own; ``prepare`` runs in it first (limits, another user)."""
    output = folder / f"job-{next(_numbers)}"
    process = _FORKS.Process(target=_child, args=(main, output, dict(env or {}), prepare))
    process.start()
    assert process.pid is not None

    def wait(seconds: float) -> int | None:
        process.join(seconds)
        return process.exitcode

    job = Job(process.pid, wait, output)
    wait_for(lambda: output.with_suffix(".err").exists() or job.poll() is not None, 60)
    return job


@contextmanager
def command(
    arguments: list[str], folder: Path, env: Mapping[str, str] | None = None, prepare: Preparation | None = None
) -> Iterator[Job]:
    """``timestepper ARGUMENTS`` in a forked process; ended at the latest when the block is left."""
    job = fork(functools.partial(run_command, arguments), folder, env, prepare)
    try:
        yield job
    finally:
        job.clean()


@contextmanager
def torchrun(arguments: list[str], folder: Path, *options: str, processes: int = 2) -> Iterator[Job]:
    """``torchrun --standalone OPTIONS -m timestepper ARGUMENTS``; the workers are fresh interpreters."""
    launcher = ["--standalone", "--nproc-per-node", str(processes), *options, "-m", "timestepper", *arguments]
    job = fork(functools.partial(run_torchrun, launcher), folder, {"OMP_NUM_THREADS": "1"})
    try:
        yield job
    finally:
        job.clean()


@contextmanager
def ranks(
    arguments: list[str], folder: Path, port: int, world: int = 2, prepare: Preparation | None = None
) -> Iterator[list[Job]]:
    """The processes of a distributed run without torchrun above them, where its part is not looked at."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    main = functools.partial(run_command, arguments)
    jobs: list[Job] = []
    try:
        for rank in range(world):
            env = {**address, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            jobs.append(fork(main, folder, env, prepare))
        yield jobs
    finally:
        for job in jobs:
            job.clean()


@contextmanager
def fresh_command(arguments: list[str], folder: Path, before: tuple[str, ...] = ()) -> Iterator[Job]:
    """``python -m timestepper ARGUMENTS`` in a new interpreter, behind another command where one is given."""
    output = folder / f"job-{next(_numbers)}"
    line = [*before, sys.executable, "-m", "timestepper", *arguments]
    with open(output.with_suffix(".out"), "w") as out, open(output.with_suffix(".err"), "w") as err:
        process = subprocess.Popen(line, stdout=out, stderr=err, start_new_session=True)

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    job = Job(process.pid, wait, output)
    try:
        yield job
    finally:
        job.clean()


# -- looking at processes --------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any], seconds: float = 60, pause: float = 0.01) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"did not happen within {seconds} s"
        time.sleep(pause)
    return answer


def _stat(pid: int) -> list[str]:
    """State, parent, group … of a process; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _table() -> dict[int, list[str]]:
    found = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    return {pid: stat for pid, stat in found.items() if stat and stat[0] != "Z"}


def children(pid: int) -> list[int]:
    """Living children of a process, oldest first."""
    return sorted(child for child, stat in _table().items() if int(stat[1]) == pid)


def descendants(pid: int) -> list[int]:
    """Living children of a process and theirs."""
    table, found = _table(), [pid]
    for parent in found:
        found += [child for child, stat in table.items() if int(stat[1]) == parent]
    return found[1:]


def members(group: int) -> list[int]:
    """Living processes of a process group."""
    return [pid for pid, stat in _table().items() if int(stat[2]) == group]


def alive(pid: int) -> bool:
    stat = _stat(pid)
    return bool(stat) and stat[0] != "Z"


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# -- preparations of a child -----------------------------------------------------------------------------------------


def limit_file_size(size: int) -> None:
    """Writing beyond this size fails as it does on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def become_nobody() -> None:
    """A user without any rights, because root may write everywhere."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
