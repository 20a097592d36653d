"""Ctrl-C while a finished run is measured."""

import json

import pytest

from timestepper.experiment.load import as_dict, load
from timestepper.experiment.reproduce import FINISHED, bring_to_end, plan
from timestepper.experiment.sets import Wanted
from timestepper.files import with_checksum

WANTED = [
    Wanted(load("smoke/digits", [f"run.seed={seed}"]), "smoke/digits", 0.1, ("noise",), ("mini",)) for seed in (0, 1)
]


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    for wanted in WANTED:
        (tmp_path / wanted.folder).mkdir()
        content = with_checksum({"recipe": as_dict(wanted.recipe)})
        (tmp_path / wanted.folder / "record.json").write_text(json.dumps(content))
    steps = plan(WANTED, [], tmp_path)
    assert [step.state for step in steps] == [FINISHED, FINISHED]
    begun = []

    def measured(run, results, wanted):
        begun.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr("timestepper.experiment.measure.complete", measured)
    try:
        code = bring_to_end(steps, tmp_path / "results")
    except KeyboardInterrupt:  # would end all tests
        pytest.fail("left without a word")
    assert code == 130
    assert begun == [steps[0].run]
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{steps[0].run} is finished and saved, and the same command goes on with measuring" in line
