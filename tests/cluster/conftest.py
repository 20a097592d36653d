"""What the tests of jobs share: the command, an undisturbed sweep, and an end for all that they started."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import pytest
from cluster_runs import SWEEP, statuses
from outcomes import remains
from processes import run
from start_slurm import Slurm, missing
from watching import descendants, kill, wait_for

from timestepper.engine.rundir import lives


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """What is left of every run of a sweep in one process, by its folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(folder, *SWEEP)
    assert done.returncode == 0, done.stderr
    return {name: remains(folder / "runs" / name) for name in statuses(folder)}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder to work in; local jobs that are left over are ended."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield tmp_path
    for file in (tmp_path / "runs" / "jobs").glob("timestepper-*.json"):
        with contextlib.suppress(ValueError, KeyError):
            job = json.loads(file.read_text())
            if lives(job | {"pid": int(job["id"])}):  # a number of Slurm's has no process
                for pid in [int(job["id"]), *descendants(int(job["id"]))]:
                    kill(pid)


@pytest.fixture(scope="session")
def one_slurm():
    """A real one, for all tests of a process."""
    if reason := missing():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))  # the path of a socket must be short
    try:
        with Slurm(folder) as slurm:
            yield slurm
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(one_slurm, monkeypatch):
    """The same, with both nodes at work and no job left."""
    for name, value in one_slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield one_slurm
    one_slurm.ask("scancel", "--signal=KILL", "--full", "--me")  # processes that a test has stopped
    one_slurm.ask("scancel", "--me")
    one_slurm.ask("scontrol", "update", "nodename=a,b", "state=resume")

    def ready():
        states = one_slurm.ask("sinfo", "-h", "-p", "main", "-o", "%t").split()
        return not one_slurm.ask("squeue", "-h") and not any(s.startswith(("down", "dr", "comp")) for s in states)

    wait_for(ready)
