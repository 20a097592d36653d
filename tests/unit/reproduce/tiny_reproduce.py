"""The command in a process of its own."""

import os
import subprocess
import sys


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
