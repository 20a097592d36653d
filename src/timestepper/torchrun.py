"""What torchrun tells its processes in their environment. Without torch: a command can ask before it loads it."""

import os

from timestepper.errors import LaunchError


def launched() -> bool:
    """Whether torchrun (or its like) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def check() -> None:
    """Refuse to train alone, or to wait for others in vain, where a part of what torchrun sets is missing.

    Clusters set ``MASTER_ADDR`` and ``MASTER_PORT`` for every process, so these alone say nothing.
    """
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    there, missing = ([name for name in names if (name in os.environ) is wanted] for wanted in (True, False))
    if missing and ("RANK" in there or "WORLD_SIZE" in there):
        raise LaunchError(
            f"the environment has {', '.join(there)} as under torchrun, but not {', '.join(missing)}; start it with "
            "torchrun, or unset them"
        )


def rank() -> int:
    """Number of this process in its job; 0 where it is alone."""
    return _number("RANK", 0, 0, world_size() - 1) if launched() else 0


def world_size() -> int:
    """Number of processes in the job."""
    return _number("WORLD_SIZE", 1, 1) if launched() else 1


def local_rank() -> int:
    """Number of this process on its machine: the GPU that it takes."""
    return _number("LOCAL_RANK", 0, 0)


def local_world_size() -> int:
    """Number of the job's processes on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1, 1)


def restarts() -> int:
    """How often torchrun has restarted the job."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0, 0)


def agent() -> bool:
    """Whether an agent of torchrun's watches over this process, and sends it the signals that it gets itself."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_hosts_store() -> bool:
    """Whether the agent keeps the store through which processes find each other, and hands it to a restarted job."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def port() -> int:
    """Where the processes of a job meet, on the machine that ``MASTER_ADDR`` names."""
    return _number("MASTER_PORT", -1, 0, 2**16 - 1)


def _number(name: str, default: int, least: int, most: int = 2**31 - 1) -> int:
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise LaunchError(
            f"the environment says {name}={text[:40]!r}, which torchrun never does (allowed: {least} to {most}); start "
            "the job with torchrun, or unset RANK and WORLD_SIZE"
        )
    return int(text)
