"""Shared by all tests: one thread (several tests run side by side) and the tables of tiny cases on the path."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random numbers for a test, whichever tests its process ran before."""
    torch.manual_seed(0)


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that nobody listens on."""
    from ranks import free_port  # on the path only now

    return free_port()
