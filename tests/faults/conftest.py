"""What the fault tests share: uninterrupted runs to compare with."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import processes
import pytest
import runs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Random numbers of a test: others at every run in a soak, where $TIMESTEPPER_SEED does not fix them."""
    full = "full" in request.node.name
    seed = int(os.environ.get("TIMESTEPPER_SEED", time.time_ns() % 2**32 if full else 0))
    print(f"TIMESTEPPER_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def fuzz(figure) -> Callable:
    """Check so many examples: always the same in the default run, others each time in a soak."""

    def fuzz(times: int, strategy: st.SearchStrategy, check: Callable[[Any], object]) -> None:
        examples = 0

        @settings(
            max_examples=times,
            deadline=None,
            database=None,
            derandomize=times < 1000,
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def run(example: Any) -> None:
            nonlocal examples
            examples += 1
            check(example)

        run()
        figure(examples=examples)

    return fuzz


# -- data and an uninterrupted run ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits as image files."""
    return runs.write_digit_folder(tmp_path_factory.mktemp("images") / "root")


@pytest.fixture(scope="session")
def folder_run(tmp_path_factory: pytest.TempPathFactory, image_folder: Path) -> Path:
    """A finished run on image files, two workers."""
    folder = tmp_path_factory.mktemp("folder")
    with processes.command(runs.train(folder / "run", recipe=runs.folder_recipe(image_folder)), folder) as job:
        assert job.wait() == 0, job.stderr
    return folder / "run"
