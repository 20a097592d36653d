"""The command in a process of its own."""

import time

from processes import command_in, run

__all__ = ["run", "stop_when"]


def stop_when(ready, number, folder, *arguments):
    """Start the command, send it a signal once ``ready()``; the process and what it printed."""
    with command_in(folder, *arguments) as process:
        while not ready():
            assert process.poll() is None, process.stdout + process.stderr
            time.sleep(0.02)
        process.send(number)
        process.wait()
        return process, process.stdout, process.stderr
