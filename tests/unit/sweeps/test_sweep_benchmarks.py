"""The benchmarks run on a CPU too, at sizes that say nothing about speed."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TINY = ["runtime.compile=false", "runtime.cuda_graph=false", "runtime.precision=float32"]


def run(script, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_step(tmp_path):
    written = tmp_path / "step.json"
    small = ["--model", "cifar/resnet8", "--batches", 4, "--controllers", "lstm", "--rounds", 2, "--seconds", 0.1]
    printed = run("training_step.py", *small, "--modes", "eager", "graph", "--json", written, TINY[-1])
    (case,) = json.loads(written.read_text())["cases"]
    assert set(case["modes"]) == {"eager", "graph"}
    assert case["modes"]["eager"]["speedup"] == 1
    assert "1.00 times eager" in printed


def test_sweep_against_one_after_another(tmp_path):
    written = tmp_path / "sweep.json"
    run("sweep.py", "--together", 2, "--batch", 16, "--images", 64, "--epochs", 2, "--json", written, *TINY,
        "model.name=cifar/resnet8")  # fmt: skip
    found = json.loads(written.read_text())
    assert len(found["alone_s"]) == 2
    assert found["together"]["2"]["bit_equal"] == 2
    assert found["together"]["2"]["speedup"] > 0
