"""Real processes for the tests: started, watched, signalled and always cleaned up.

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
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from watching import alive, descendants, kill, members, wait_for

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
        "timm",
        "timestepper.adapters.native",
        "timestepper.cli",
        "timestepper.runs.train",
        "timestepper.data.digits",
        "timestepper.data.folder",
        "timestepper.data.loading",
        "timestepper.data.streamed",
    ]
)
_numbers = itertools.count()
Preparation = Callable[[], object]


class Job:
    """A running process, the leader of its own process group, with its output in files; leaving ``with`` ends it."""

    def __init__(self, pid: int, wait: Callable[[float], int | None], output: Path):
        self.pid = pid
        self._wait = wait
        self._output = output
        self._offspring: set[int] = set()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.clean()

    @property
    def stdout(self) -> str:
        return self._output.with_suffix(".out").read_text()

    @property
    def stderr(self) -> str:
        return self._output.with_suffix(".err").read_text()

    def poll(self) -> int | None:
        """The exit code, None while it runs; minus the signal's number where one killed it."""
        return self._wait(0)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def wait(self, seconds: float = 300) -> int:
        """The exit code; an error where the process does not end in time."""
        code = self._wait(seconds)
        assert code is not None, f"process {self.pid} still runs after {seconds} s\n{self.stdout}\n{self.stderr}"
        return code

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to its whole group as a terminal does; one that has ended hears nothing."""
        with suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def kill(self) -> int:
        """SIGKILL to the process alone; its exit code."""
        if self.poll() is None:
            self.send(signal.SIGKILL)
        return self.wait()

    def offspring(self) -> list[int]:
        """Its living descendants; they are remembered, because those of a killed process cannot be found any more."""
        found = descendants(self.pid)
        self._offspring.update(found)
        return found

    def kill_all(self) -> None:
        """SIGKILL to the process and all its descendants, as a machine that loses power does."""
        for pid in [self.pid, *self.offspring()]:
            kill(pid)
        self.wait()

    def survivors(self) -> list[int]:
        """Who is still there of the process, its group and all descendants that were ever seen."""
        return [pid for pid in {self.pid, *members(self.pid), *self._offspring} if alive(pid)]

    def clean(self) -> None:
        """End whatever is left of it."""
        self.offspring()
        for pid in self.survivors():
            kill(pid)
        self._wait(300)


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
    wait_for(lambda: output.with_suffix(".err").exists() or job.poll() is not None)
    return job


def command(
    arguments: list[str], folder: Path, env: Mapping[str, str] | None = None, prepare: Preparation | None = None
) -> Job:
    """``timestepper ARGUMENTS`` in a forked process."""
    return fork(functools.partial(run_command, arguments), folder, env, prepare)


@contextmanager
def command_in(folder: Path, *arguments: object, **environment: str) -> Iterator[Job]:
    """``timestepper ARGUMENTS`` in a folder, in a forked process; nothing but its own files appears there."""
    line = [str(argument) for argument in arguments]
    with (
        tempfile.TemporaryDirectory() as outputs,
        command(line, Path(outputs), environment, functools.partial(os.chdir, folder)) as job,
    ):
        yield job


def run(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """The same, to its end."""
    with command_in(folder, *arguments, **environment) as job:
        return subprocess.CompletedProcess(arguments, job.wait(), job.stdout, job.stderr)


def torchrun(arguments: list[str], folder: Path, *options: str) -> Job:
    """``torchrun --standalone --nproc-per-node 2 OPTIONS -m timestepper ARGUMENTS``; workers are fresh interpreters."""
    launcher = ["--standalone", "--nproc-per-node", "2", *options, "-m", "timestepper", *arguments]
    return fork(functools.partial(run_torchrun, launcher), folder)


def machine(arguments: list[str], folder: Path, port: int, cwd: Path, restarts: int) -> Job:
    """``torchrun`` on one of two machines, one process on each, as the documentation says to start it."""
    launcher = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts), "--rdzv-id", "job"]
    launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "-m", "timestepper", *arguments]
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return fork(functools.partial(run_torchrun, launcher), folder, env, functools.partial(os.chdir, cwd))


@contextmanager
def ranks(
    main: list[str] | Callable[[], None], folder: Path, port: int, world: int = 2, prepare: Preparation | None = None
) -> Iterator[list[Job]]:
    """A command (or a function) as the processes of a distributed run, where torchrun's part is not looked at."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    if isinstance(main, list):
        main = functools.partial(run_command, main)
    each = [{**address, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    with ExitStack() as jobs:
        yield [jobs.enter_context(fork(main, folder, env, prepare)) for env in each]


def fresh_command(arguments: list[str], folder: Path, before: Sequence[str] = (), launcher: Sequence[str] = ()) -> Job:
    """``python -m timestepper ARGUMENTS`` in a new interpreter, behind another command or a launcher of Python's."""
    output = folder / f"job-{next(_numbers)}"
    line = [*before, sys.executable, *launcher, "-m", "timestepper", *arguments]
    with open(output.with_suffix(".out"), "w") as out, open(output.with_suffix(".err"), "w") as err:
        process = subprocess.Popen(line, stdout=out, stderr=err, start_new_session=True)

    def wait(seconds: float) -> int | None:
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    return Job(process.pid, wait, output)


def under_fire(
    start: Callable[[Path], Job],
    folder: Path,
    times: int,
    moment: Callable[[Job, Path], object],
    kill: Callable[[Job], object] = Job.kill,
) -> list[Path]:
    """Start, wait for the moment, kill, start again, until so many kills have hit; the runs that came to their end."""
    ended: list[Path] = []
    kills = 0
    while True:
        run = folder / f"run-{len(ended)}"
        with start(run) as job:
            if kills < times:
                moment(job, run)
                if job.poll() is None:
                    kill(job)
                    kills += 1
                    continue
            assert job.wait() == 0, job.stdout + job.stderr
        ended.append(run)
        if kills == times:
            return ended


# -- preparations of a child -----------------------------------------------------------------------------------------


def limit_file_size(size: int) -> None:
    """Writing beyond this size fails as it does on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def become_nobody() -> None:
    """A user without any rights, because root may write everywhere.

    What the command line imports late is imported before, because Python itself may stand in root's own folder.
    """
    import typer.main

    from timestepper.cli import app

    typer.main.get_command(app).make_context("timestepper", ["list"])
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
