"""The command in a process of its own."""

import os
import subprocess
import sys
import time


def command(folder, *arguments, **environment):
    return [sys.executable, "-m", "timestepper", *arguments], {
        "cwd": folder,
        "env": {**os.environ, "OMP_NUM_THREADS": "1", **environment},
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }


def run(folder, *arguments, **environment):
    line, options = command(folder, *arguments, **environment)
    return subprocess.run(line, **options, timeout=240)


def stop_when(ready, number, folder, *arguments):
    """Start the command, send it a signal once ``ready()``; the process and what it printed."""
    line, options = command(folder, *arguments)
    process = subprocess.Popen(line, **options)
    while not ready():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    return process, *process.communicate(timeout=300)
