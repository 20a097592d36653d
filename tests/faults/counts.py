"""How often every fault is injected: a short count for the default run, the full count behind ``pytest -m soak``.

The one place for these figures. ``@count("T7")`` gives a test both.
"""

import os

import pytest

COUNTS = {  # name: (default, full)
    "T1": (4, 50),  # kills
    "T2": (1, 20),  # kills of the whole group
    "T3": (4, 50),  # kills inside a save
    "T7": (4, 100),  # truncations
    "T8": (300, 300),  # flipped bits; a third as many zeroed pages
    "T9": (300, 300),  # the same on exported weights
    "T13": (2, 50),  # kills inside a save on another file system
    "T15": (2, 10),  # second starts, and kills of the first
    "T16": (2, 20),  # signals to a run with two workers
    "T17": (1, 10),  # kills of one rank
    "T18": (1, 10),  # kills of one rank with restarts allowed
    "T19": (3, 10),  # seconds after which a silent rank is given up
    "T20": (1, 20),  # normal ends of two ranks
    "T21": (1, 20),  # kills of a loader's worker
    "T27": (3, 20),  # kills inside an export
    "T34": (3, 20),  # states of stdout and stderr, for train, sweep and reproduce each
    "T35": (2, 50),  # kills of sweep, reproduce, report and fold, each
    "T36": (100, 4000),  # examples of each kind of input; half of those that need a whole run
    "T30": (6, int(os.environ.get("TIMESTEPPER_SOAK_SECONDS", 7200))),  # seconds of random faults
}


def count(name: str) -> pytest.MarkDecorator:
    """Run a test with the default count, and under the marker ``soak`` with the full one."""
    short, full = COUNTS[name]
    cases = [pytest.param(short, id=f"{short}")]
    if full > short:
        patience = pytest.mark.timeout(max(3600, 2 * full))
        cases.append(pytest.param(full, id=f"{full}-full", marks=[pytest.mark.soak, patience]))
    return pytest.mark.parametrize("times", cases)
