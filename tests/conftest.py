"""Shared by all tests: one thread (several tests run side by side) and the tables of tiny cases on the path."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # also for all processes that tests start
os.environ.setdefault("TIMESTEPPER_COMMIT", "0" * 40)  # which nobody asks for in a checkout

import torch

# What torch has compiled for AVX-512 it finds again where there is only AVX2, and the code then computes nonsense.
_CPU = torch.backends.cpu.get_cpu_capability().replace(" ", "_")
_CACHE = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}"))
if _CACHE.name != _CPU:  # else the process that started this one has chosen it
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(_CACHE / _CPU)

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers for a test, whichever tests its process ran before."""
    torch.manual_seed(0)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable:
    """Run a command in this process, on real files."""
    from outcomes import Outcome

    from timestepper.cli import main

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["timestepper", *arguments])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        return Outcome(code, *capfd.readouterr())

    return call


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that nobody listens on."""
    from ranks import free_port  # on the path only now

    return free_port()


@pytest.fixture
def figure(request: pytest.FixtureRequest):
    """Note what a test has measured, in the file that $TIMESTEPPER_FIGURES names (for docs/reliability.md)."""

    def note(**values: object) -> None:
        if path := os.environ.get("TIMESTEPPER_FIGURES"):
            with open(path, "a") as file:
                file.write(json.dumps({"test": request.node.name, **values}) + "\n")

    return note
