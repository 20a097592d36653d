"""``data.accumulate``: a run that takes its batches in parts, with controllers, where no norm looks at a whole part."""

import json

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from timestepper.cli import app
from timestepper.errors import RecipeError

# 1,437 images are five batches, and the rest of each epoch is left out
RECIPE = ("smoke/digits", "model.name=cifar/nf_resnet8", "data.batch_size=256", "run.epochs=1", "optimiser.lr=0.02")
RECIPE += ("run.tensorboard=false", "runtime.device=cpu")


def train(run, *changes):
    result = CliRunner().invoke(app, ["train", *RECIPE, *changes, "--run-dir", str(run)])
    if isinstance(result.exception, RecipeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return load_file(run / "weights.safetensors"), json.loads((run / "record.json").read_text())


@pytest.mark.parametrize("kind", ["none", "lstm"])
def test_parts_add_up_to_the_batch(tmp_path, kind):
    whole, _ = train(tmp_path / "whole", f"controller.kind={kind}")
    parts, record = train(tmp_path / "parts", f"controller.kind={kind}", "data.accumulate=8")
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-4, atol=1e-5)
    assert record["recipe"]["data"]["accumulate"] == 8
    assert json.loads((tmp_path / "parts/status.json").read_text())["step"] == 5
    with pytest.raises(RecipeError, match=r"begun with another recipe: data\.accumulate 8 -> 4"):
        train(tmp_path / "parts", f"controller.kind={kind}", "data.accumulate=4")
