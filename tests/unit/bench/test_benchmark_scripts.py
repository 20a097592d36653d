"""The benchmarks run on a CPU too, at sizes that say nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def run(script, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_step(tmp_path):
    written = tmp_path / "step.json"
    small = ["--model", "cifar/resnet8", "--batches", 4, "--controllers", "lstm", "--rounds", 2, "--seconds", 0.1]
    how = ["--modes", "eager", "graph", "--looks", 1, "--json", written, "runtime.precision=float32"]
    printed = run("training_step.py", *small, *how)
    (case,) = json.loads(written.read_text())["cases"]
    assert set(case["modes"]) == {"eager", "graph"}
    assert case["modes"]["eager"]["speedup"] == 1
    assert "1.00 times eager" in printed
    assert case["monitor"]["share"] > 0
