"""The demo with its set cut to one epoch and one seed; `make demo` runs all of it."""

import json

import pytest
from typer.testing import CliRunner

from timestepper.cli import app
from timestepper.errors import MismatchError
from timestepper.files import with_checksum
from timestepper.sweeps import plan


@pytest.fixture
def short_demo(monkeypatch):
    whole, short = plan.open_sets, ("run.epochs=1", "model.name=cifar/resnet8", "runtime.device=cpu")

    def open_sets(name, **options):
        return [run for run in whole(name, **{**options, "overrides": short}) if run.recipe.run.seed == 0]

    monkeypatch.setattr(plan, "open_sets", open_sets)


def test_the_demo_trains_folds_compares_and_writes_a_page(short_demo, tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for part in ("plain", "lstm", "Minus plain", "folded; largest difference of logits 0.0", "The page: "):
        assert part in result.output
    page = (tmp_path / "index.html").read_text()
    assert page.count("<svg") >= 3

    (path,) = (tmp_path / "results").glob("*_lstm_*.json")
    content = json.loads(path.read_text())
    content["final"]["fold_difference"] = 0.5
    path.write_text(json.dumps(with_checksum(content)))
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert isinstance(result.exception, MismatchError)
    assert "the folded network does not give the attached network's logits" in str(result.exception)
