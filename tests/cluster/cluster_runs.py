"""A sweep of tiny runs, what its folders say, and a run that is held at some step until something happens to it."""

import json
import os
import signal
from pathlib import Path

from watching import alive, wait_for

SWEEP = (
    *("sweep", "smoke/digits", "data.batch_size=256", "run.epochs=8", "run.tensorboard=false", "runtime.device=cpu"),
    *("--seeds", "0-2", "--jobs", "2", "--checkpoint-seconds", "0"),
)
STEPS = 40
BELOW = "smoke/digits/data.batch_size=256,run.epochs=8"
SEEDS = [f"{BELOW}/seed{seed}" for seed in range(3)]


def statuses(folder: Path) -> dict[str, dict]:
    """What every run says of itself, by its folder."""
    runs = folder / "runs"
    found = {}
    for path in sorted(runs.rglob("status.json")):
        found[str(path.parent.relative_to(runs))] = json.loads(path.read_text())
    return found


def hold(folder: Path, *names: str, step: int = 5) -> list[int]:
    """Stop the processes of these runs once they are so far, so that what comes next finds them there; their numbers.

    Slurm lets a stopped process go on before it tells it anything.
    """
    held: dict[str, int] = {}

    def all_there() -> bool:
        for name, status in statuses(folder).items():
            there = status["state"] == "running" and status["step"] >= step and alive(status["pid"])
            if name in names and name not in held and there:
                held[name] = status["pid"]
                os.kill(status["pid"], signal.SIGSTOP)
        return len(held) == len(names)

    wait_for(all_there)
    return [held[name] for name in names]


def shown(outcome) -> dict[str, str]:
    """The states that a command has shown, by run."""
    assert outcome.code == 0, outcome.err
    lines = [line.split(None, 2) for line in outcome.out.splitlines() if line.startswith("smoke/")]
    return {line[0]: line[1] for line in lines}


def jobs_of(folder: Path) -> list[dict]:
    """The files of all jobs, oldest first."""
    files = sorted((folder / "runs" / "jobs").glob("timestepper-*.json"), key=os.path.getmtime)
    return [json.loads(file.read_text()) for file in files]


def told(folder: Path, job: str) -> str:
    """What a job has printed, in all its turns."""
    return "".join(file.read_text() for file in sorted((folder / "runs" / "jobs").glob(f"{job}_0_log.*")))
