"""``timestepper bench`` on the CPU."""

import json

import pytest
from typer.testing import CliRunner

from timestepper.cli import app
from timestepper.errors import RunDirectoryError, UnknownNameError

FAST = ["bench", "--model", "cifar/resnet8", "--batch", "2", "--device", "cpu", "--rounds", "2", "--seconds", "0.05"]


def test_all_variants_in_one_table(tmp_path):
    file = tmp_path / "new" / "results" / "bench.json"
    answer = CliRunner().invoke(app, [*FAST, "--json", str(file), "--commit", "abc"])
    assert answer.exit_code == 0, answer.output
    result = json.loads(file.read_text())
    assert result["environment"]["commit"] == "abc"
    rows = result["modes"]["eager"]
    expected = ("plain", "literal", "lstm", "two_fc", "independent", "squeeze-excite", "layer-scale", "rezero")
    for name in expected:
        assert "error" not in rows[name], rows[name]
        assert rows[name]["train_ratio"]["median"] > 0
        for figure, ratio in (("parameters", "parameters_ratio"), ("first_step_s", "first_step_ratio")):
            assert rows[name][ratio] == pytest.approx(rows[name][figure] / rows["plain"][figure])
        assert name in answer.output
    assert "folded_ratio" in rows["lstm"]
    assert "folded_ratio" not in rows["squeeze-excite"]
    assert rows["lstm"]["folded_parameters"] == rows["plain"]["parameters"]
    assert rows["plain"]["times_floor"] == pytest.approx(rows["plain"]["train_ms"]["median"] / result["floor"]["ms"])


def test_a_failing_variant_leaves_its_reason_and_the_others(monkeypatch, tmp_path):
    from timestepper.bench import peers

    def fail(channels):
        raise RuntimeError("no such layer")

    monkeypatch.setitem(peers.PEERS, "rezero", fail)
    answer = CliRunner().invoke(app, [*FAST, "--variant", "rezero", "--variant", "plain"])
    assert answer.exit_code == 0
    assert "no such layer" in answer.output
    assert "plain" in answer.output


def test_unknown_names_are_refused():
    for option, value in (("--variant", "nothing"), ("--mode", "fast"), ("--precision", "int8")):
        with pytest.raises(UnknownNameError, match=value):
            CliRunner().invoke(app, [*FAST, option, value], catch_exceptions=False)


def test_what_cannot_be_done_is_said_before_anything_is_measured(monkeypatch):
    from timestepper.bench import compare

    monkeypatch.setattr(compare, "compare", lambda *_, **__: pytest.fail("measured"))
    with pytest.raises(UnknownNameError, match="CUDA graph needs a CUDA device"):
        CliRunner().invoke(app, [*FAST, "--mode", "graph"], catch_exceptions=False)
    with pytest.raises(RunDirectoryError, match="cannot write /proc/nowhere"):
        CliRunner().invoke(app, [*FAST, "--json", "/proc/nowhere/bench.json"], catch_exceptions=False)
    with pytest.raises(RunDirectoryError, match="name a file"):
        CliRunner().invoke(app, [*FAST, "--json", ""], catch_exceptions=False)
    assert CliRunner().invoke(app, [*FAST, "--pixels", "-3"]).exit_code == 2
