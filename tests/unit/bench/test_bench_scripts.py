"""The scripts in benchmarks/, which are no package."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))


def test_floor_takes_the_ceiling_of_the_precision_that_the_recipe_says():
    import training_step

    assert training_step.computes_in([]) == torch.bfloat16  # paper/cifar10 says so itself
    assert training_step.computes_in(["runtime.precision=float32"]) == torch.float32
