"""Ctrl-C or SIGTERM while a finished run is measured."""

import json
import signal

import pytest

from timestepper.files import with_checksum
from timestepper.recipe.load import as_dict, load
from timestepper.runs.run import Run
from timestepper.sweeps.reproduce import UNRECORDED, bring_to_end, plan


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_says_what_is_saved_and_how_to_go_on(number, tmp_path, monkeypatch, capsys):
    recipes = [load("smoke/digits", [f"run.seed={seed}"]) for seed in (0, 1)]
    runs = [Run(recipe, "mini", tmp_path / f"{n}", measures=("noise",)) for n, recipe in enumerate(recipes)]
    for run in runs:
        run.path.mkdir()
        (run.path / "record.json").write_text(json.dumps(with_checksum({"recipe": as_dict(run.recipe)})))
    plan(runs, [])
    assert [run.state for run in runs] == [UNRECORDED, UNRECORDED]
    begun = []

    def measured(run, *_):
        begun.append(run)
        signal.raise_signal(number)

    monkeypatch.setattr("timestepper.runs.measure.complete", measured)
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        code = bring_to_end(runs, tmp_path / "results")
    except KeyboardInterrupt:  # would end all tests
        pytest.fail("left without a word")
    finally:
        kept = signal.signal(signal.SIGINT, before[0]), signal.signal(signal.SIGTERM, before[1])
    assert kept == (signal.default_int_handler, signal.SIG_IGN)
    assert code == 128 + number
    assert begun == [runs[0].path]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{runs[0].path} is finished and saved, and the same command goes on with measuring" in line
