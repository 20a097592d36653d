"""A run directory: one run, one process that writes, a status that a person can read."""

import contextlib
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timestepper import validate
from timestepper.errors import RunDirectoryError, TimestepperError
from timestepper.files import LEFTOVER, explain, open_own, remove_leftovers, write_json
from timestepper.validate import Source

LOCK, STATUS, RECIPE, METRICS, TIMING = "run.lock", "status.json", "recipe.toml", "metrics.jsonl", "timing.jsonl"
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
_BELOW = re.compile(r"\w+\.\w+=|seed\d+$")  # folders of runs of the same recipe with other settings
_OWN = {LOCK, STATUS, RECIPE, METRICS, TIMING, CHECKPOINTS, TENSORBOARD}


@dataclass(frozen=True)
class _Status:
    """The fields of a status that anybody computes with or prints."""

    state: str
    host: str = ""
    time: str = ""
    process: str = ""
    pid: int = 0
    step: int = 0
    steps: int = 0
    test_error: float = 0.0


class RunDirectory:
    """Holds the lock of a run directory from construction to :meth:`close` (or the death of the process)."""

    def __init__(self, path: Path):
        self.path = path
        self._made = [place for place in (path / LOCK, path, *path.parents) if not os.path.lexists(place)]
        try:
            path.mkdir(parents=True, exist_ok=True)
            # A lock of this kind belongs to the process alone: loader workers that outlive a killed run do not hold it.
            self._lock = open_own(path / LOCK)
        except OSError as error:
            _remove(self._made[1:])  # the lock, if one is there now, is another's
            raise explain(error, path / LOCK) from error
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(self._lock.fileno()).st_nlink:
                raise BlockingIOError  # a process that held it has just removed it, and may be followed by a third
        except OSError:
            self._lock.seek(0)
            owner = self._lock.read().decode(errors="replace").strip() or "another process"
            self._lock.close()
            raise in_use(path, owner) from None
        self._here = os.open(path, os.O_RDONLY)  # keeps its number from being another's
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        names = sorted(item.name for item in self.path.iterdir() if not item.name.startswith(LOCK))
        strangers = [name for name in names if LEFTOVER.sub("", name) not in _OWN and not _BELOW.match(name)]
        if strangers and not any((self.path / name).exists() for name in (STATUS, RECIPE)):
            raise RunDirectoryError(
                f"{self.path} holds {', '.join(strangers[:3])}{' ...' if len(strangers) > 3 else ''} and no run; "
                "choose an empty or new folder"
            )
        status = read_status(self.path) or {}
        if status.get("state") == "running" and status.get("pid") != os.getpid() and lives(status):
            how = f"although somebody has removed its {LOCK}, or this is a copy of its folder"
            raise in_use(self.path, f"process {status['pid']}, {how}")
        try:
            self._lock.truncate(0)
            self._lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            raise explain(error, self.path / LOCK, 100) from error
        remove_leftovers(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    def check(self) -> None:
        """Refuse to write where another folder has taken the place of ours: it is another run's."""
        if not self._is_ours():
            raise RunDirectoryError(
                f"{self.path} was moved or removed while it was trained; nothing more is written there"
            )

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Around what is written there: it is looked at before, and again where that fails, as it may be moved then."""
        self.check()
        try:
            yield
        except TimestepperError:
            self.check()
            raise

    def status(self, state: str, **fields: Any) -> None:
        """Say where the run stands: running, interrupted, failed or finished."""
        content = {"state": state, "pid": os.getpid(), "host": socket.gethostname()}
        content |= {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **fields, "process": birth(os.getpid())}
        with self.writing():
            write_json(self.path / STATUS, content, 2)

    def close(self) -> None:
        """Give the lock back; a start that wrote nothing leaves nothing behind."""
        if not self._lock.closed:
            if self._is_ours() and not any((self.path / name).exists() for name in _OWN - {LOCK}):
                _remove(self._made)  # while the lock is held, so that it is nobody else's
            self._lock.close()
            os.close(self._here)

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._here))
        except OSError:
            return False


def mark(path: Path, number: int) -> Path:
    """A file that a run may leave in its folder for a moment, for other processes to see; gone at the next start."""
    return path / f"{LOCK}.{number:016x}.tmp"


def check_run(path: Path) -> None:
    """Refuse a folder that holds no run, or that is not there, and say where runs are found."""
    if not os.path.isfile(path / RECIPE):  # of os, because that of a path raises at names that are too long
        reason = f"it has no {RECIPE}" if os.path.isdir(path) else "there is no such folder"
        raise RunDirectoryError(f"{path} is no run directory: {reason}; timestepper list shows the runs")


def read_status(path: Path) -> dict[str, Any] | None:
    """The status of a run directory, None where there is no sound one; a run whose process is gone is ``killed``."""
    source = Source(path / STATUS, RunDirectoryError)
    try:
        status = validate.read(path / STATUS, source)
        validate.build(_Status, status, source, extra=True)
    except RunDirectoryError:
        return None
    if status["state"] == "running" and is_here(status) and not _alive(status):
        status["state"] = "killed"
    return status


def is_here(status: dict[str, Any]) -> bool:
    """Whether a status was written on this machine."""
    return status.get("host") == socket.gethostname()


def _remove(places: list[Path]) -> None:
    """Remove a lock and the folders around it, innermost first; a folder that holds anything else stays."""
    for place in places:
        with contextlib.suppress(OSError):
            place.unlink() if place.name == LOCK else place.rmdir()


def in_use(path: Path, owner: str) -> RunDirectoryError:
    return RunDirectoryError(f"{path} is in use by {owner}; wait for it, stop it, or choose another --run-dir")


def _alive(status: dict[str, Any]) -> bool:
    """Whether the process of a status lives, as far as can be told: its number may be another's by now."""
    pid = status.get("pid", 0)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # the latter for what is no process's number
        return False
    except PermissionError:
        pass
    return "process" not in status or status["process"] == birth(pid)


def lives(status: dict[str, Any]) -> bool:
    """Whether the very process of a status lives, on this machine."""
    return is_here(status) and bool(status.get("process")) and _alive(status)


def birth(pid: int) -> str:
    """What no two processes of one number share, not even over a reboot; empty for a dead one, or without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{boot} {others[18]}"  # a zombie is dead; nobody has taken note of it yet
