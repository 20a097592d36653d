"""Processes beside a sweep: sessions of their own, so that Ctrl-C is the sweep's, and none of them outlives it."""

import contextlib
import os
import signal
import subprocess
import threading
import time

GPU_PROCESSES = "TIMESTEPPER_GPU_PROCESSES"  # sweeps that share the GPU, each of them is told


def end(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def leave_with(parent: int) -> None:
    """In such a process: a sweep that is killed cannot end it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
