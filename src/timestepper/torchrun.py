"""What torchrun tells its processes in their environment. Without torch: a command can ask before it loads it."""

import os


def launched() -> bool:
    """Whether torchrun (or its like) started this process."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """Number of this process in its job; 0 where it is alone."""
    return int(os.environ["RANK"]) if launched() else 0


def world_size() -> int:
    """Number of processes in the job."""
    return int(os.environ["WORLD_SIZE"]) if launched() else 1


def local_rank() -> int:
    """Number of this process on its machine: the GPU that it takes."""
    return int(os.environ.get("LOCAL_RANK", 0))


def local_world_size() -> int:
    """Number of the job's processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def restarts() -> int:
    """How often torchrun has restarted the job."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def agent() -> bool:
    """Whether an agent of torchrun's watches over this process, and sends it the signals that it gets itself."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def agent_hosts_store() -> bool:
    """Whether the agent keeps the store through which processes find each other, and hands it to a restarted job."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
