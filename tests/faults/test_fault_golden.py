"""The first losses of a run, to the bit, for each version of torch: T31.

A file of another version is made by this test itself: ``TIMESTEPPER_WRITE_GOLDEN=1 pytest tests/faults -k t31``.
"""

import json
import os
import platform
from pathlib import Path

import pytest
import runs
import torch
from processes import fresh_command

FOLDER = Path(__file__).parent / "golden"
RECIPE = ["smoke/digits-lstm", "run.epochs=1", "run.log_steps=1", "run.tensorboard=false", "runtime.device=cpu"]
LOSSES = 20
# Kernels that every x86-64 processor has, so that the bits do not depend on which one runs the test.
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"}


def test_t31_the_first_losses_are_those_of_this_version(tmp_path, monkeypatch):
    version = ".".join(torch.__version__.split(".")[:2])
    path = FOLDER / f"torch-{version}-{platform.machine()}.json"
    writing = os.environ.get("TIMESTEPPER_WRITE_GOLDEN")
    if not path.exists() and not writing:
        pytest.skip(f"no {path.name}; make it with TIMESTEPPER_WRITE_GOLDEN=1 pytest tests/faults -k t31")
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    with fresh_command(runs.train(tmp_path / "run", recipe=RECIPE), tmp_path) as job:
        assert job.wait() == 0, job.stderr
    losses = [line["loss"] for line in runs.log(tmp_path / "run") if line["kind"] == "step"][:LOSSES]
    assert len(losses) == LOSSES
    if writing:
        path.write_text(json.dumps({"recipe": RECIPE, "losses": losses}, indent=1) + "\n")
    golden = json.loads(path.read_text())
    assert golden["recipe"] == RECIPE
    assert losses == golden["losses"]
