"""One process or many: start and stop of the process group, and the few exchanges that training needs.

Only tensors travel between processes, so nothing is ever unpickled.
"""

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from timestepper import torchrun
from timestepper.errors import DistributedError, Leave, TimestepperError
from timestepper.terminal import warn

CPU = torch.device("cpu")
_PATIENCE = 20.0  # seconds
T = TypeVar("T")
# The last group, kept until the next or for ever. With torch 2.11, DistributedDataParallel, where it is the last to let
# go of one, holds Python's lock and waits for a thread of gloo that may wait for that lock: one end in ten hung.
_KEPT: list[object] = []


@dataclass(frozen=True)
class Group:
    """This process among all: ``rank`` of ``world``. ``active`` tells whether there is a process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    active: bool = False

    def gather(self, row: Tensor) -> Tensor:
        """The rows of all ranks, (world, n)."""
        if not self.active:
            return row.unsqueeze(0)
        rows = [torch.empty_like(row) for _ in range(self.world)]
        dist.all_gather(rows, row)
        return torch.stack(rows)

    def sum(self, values: Tensor) -> Tensor:
        """Values summed over the ranks, in place."""
        if self.active:
            dist.all_reduce(values)
        return values

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the tensors of rank 0."""
        if self.active:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def agree(self, action: Callable[[], T]) -> T | None:
        """Let rank 0 act and every rank know how it went: where it fails, the others leave with the same exit code.

        What the action gives is rank 0's alone.
        """
        error: BaseException | None = None
        given: T | None = None
        if self.rank == 0:
            try:
                given = action()
            except BaseException as caught:
                error = caught
        code = 0 if error is None else getattr(error, "exit_code", 1)
        outcome = torch.tensor(code, device=self.device)
        self.broadcast([outcome])
        if error is not None:
            raise error
        if int(outcome):
            raise Leave(int(outcome))
        return given


def advice() -> str | None:
    """What to set before starting a job on several machines, where it is not set."""
    one_machine = torchrun.local_world_size() == torchrun.world_size()
    if not torchrun.launched() or one_machine or os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1":
        return None
    return "several machines: start torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, else its restarts may fail"


def start(device: torch.device, timeout_seconds: float) -> Group:
    """Join the process group where torchrun started us; call :func:`stop` in a ``finally``."""
    if not torchrun.launched():
        return Group(device=device)
    rank, world = torchrun.rank(), torchrun.world_size()
    _KEPT.clear()
    timeout = timedelta(seconds=timeout_seconds)
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + timeout_seconds))
    said = f"rank {rank} of {world} waits for the other processes, until {until} (--dist-timeout); have all begun?"
    late = threading.Timer(min(_PATIENCE, timeout_seconds / 4), warn, [said])  # one may have refused on its machine
    late.daemon = True
    late.start()
    try:
        store: dist.Store = dist.TCPStore(
            os.environ["MASTER_ADDR"],
            torchrun.port(),
            world,
            is_master=rank == 0 and not torchrun.agent_hosts_store(),
            timeout=timeout,
        )
        if torchrun.agent_hosts_store():
            # It is handed to the restarted job with the old keys in it, which a prefix for each attempt hides. A store
            # of rank 0's own is new each time; and a machine that came back counts its attempts from the beginning.
            store = dist.PrefixStore(f"attempt-{torchrun.restarts()}", store)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=rank,
            world_size=world,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    except (RuntimeError, KeyError) as error:
        raise DistributedError(
            f"rank {rank} cannot reach the other processes ({type(error).__name__}); on several machines start "
            "torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and the same --rdzv-endpoint everywhere"
        ) from error
    finally:
        late.cancel()
    _KEPT.append(dist.group.WORLD)
    return Group(rank, world, device, active=True)


def stop() -> None:
    """Leave the process group; without this, processes abort on their way out."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # of a group that has lost a process; the loss itself is what to tell
            dist.destroy_process_group()


def wrap(model: nn.Module, group: Group) -> nn.Module:
    """The module whose backward averages gradients over the ranks."""
    if not group.active:
        return model
    # Of one-channel images the first layer's gradient has other strides for its axis of length 1; nothing is lost.
    warnings.filterwarnings("ignore", message="Grad strides do not match bucket view strides")
    devices = [group.device] if group.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)


def adding(model: nn.Module, more: bool) -> contextlib.AbstractContextManager:
    """While it is open, backward adds to this rank's own gradients; unless there is more to come, it averages them."""
    if more and isinstance(model, nn.parallel.DistributedDataParallel):
        return model.no_sync()
    return contextlib.nullcontext()


def explain(error: RuntimeError, group: Group, step: int) -> TimestepperError | None:
    """The error to show where a runtime error means that another process is gone, else None."""
    lost = ("gloo", "connection", "nccl", "timed out", "timeout", "process group", "peer")
    if isinstance(error, TimestepperError) or not group.active or not any(word in str(error).lower() for word in lost):
        return None
    return DistributedError(
        f"rank {group.rank} lost another process at step {step} (it died, or was silent for longer than "
        "--dist-timeout); see its message above, then run the same command again to go on from the last checkpoint"
    )
