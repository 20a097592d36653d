"""Kernels in Triton's interpreter, which is chosen when a process starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_interpreted(program: str) -> None:
    """Run a program in a process whose kernels are interpreted; its failure is the test's."""
    pytest.importorskip("triton")
    errors = Path(__file__).parent / "unit" / "kernels"  # where kernel_errors is
    path = os.pathsep.join([str(errors), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    if "only 0-dimensional arrays" in answer.stderr:
        pytest.skip("the interpreter of this Triton does not run with this NumPy")
    assert answer.returncode == 0, answer.stderr[-2000:]
