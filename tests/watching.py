"""Looking at processes of this machine through /proc, and waiting for what they do."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


class Watch:
    """``with Watch() as watch``: how long a block took, to be noted. Nothing fails for being slow."""

    def __enter__(self) -> "Watch":
        self._start = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = round(time.monotonic() - self._start, 2)


def wait_for(condition: Callable[[], Any], seconds: float = 300, pause: float = 0.01) -> Any:
    """Ask until the answer is true; so much patience that only what hangs is given up."""
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


def is_stopped(pid: int) -> bool:
    """By SIGSTOP, which a busy machine may take a while for."""
    return _stat(pid)[:1] == ["T"]


def waits_for(pid: int, number: signal.Signals) -> bool:
    """Whether a stopped process will find a signal when it goes on."""
    (pending,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("ShdPnd"))
    return bool(int(pending.split()[1], 16) >> (number - 1) & 1)


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


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
