import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))  # where the literal paper lives


@pytest.fixture(autouse=True)
def _fresh_compiler():
    """Compiled networks of other tests must not count towards the compiler's limit of versions."""
    yield
    torch._dynamo.reset()
