"""What --carry names is enough to go on on another machine, and no more than that."""

import json
import shutil
from pathlib import Path

import pytest
from outcomes import remains
from processes import run
from tiny_sweep import run_sweep

from timestepper.engine.signals import Signals
from timestepper.sweeps.plan import open_sets

SET = """
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=2", "data.batch_size=256", "run.tensorboard=false"]
hours = 0.01
"""
SWEEP = ("sweep", "mini.toml", "--results", "results", "--measure")


class Stopping(Signals):
    """Asks to stop when a run is some steps on."""

    polls = 0

    def poll(self) -> int:
        self.polls += 1
        self.stop = 15 if self.polls > 8 else 0
        return self.stop


def carried(folder: Path) -> list[str]:
    result = run(folder, *SWEEP, "--carry")
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def measured(folder: Path) -> list[tuple]:
    found = [json.loads(path.read_text()) for path in sorted((folder / "results").glob("*.json"))]
    return [(record["seed"], record["final"], record["noise"]) for record in found]


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    for name in ("first", "second", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mini.toml").write_text(SET)
    return [tmp_path / name for name in ("first", "second", "whole")]


def test_what_is_named_goes_on_elsewhere_and_ends_as_it_would_have(folders, monkeypatch):
    first, second, whole = folders
    monkeypatch.chdir(first)
    unmeasured, stopped = open_sets("mini.toml")
    unmeasured.measures = ()
    run_sweep([unmeasured], results=Path("results"))
    run_sweep([stopped], Stopping())
    assert (unmeasured.state, stopped.state) == ("finished", "interrupted")
    names = carried(first)
    (newest,) = [name for name in names if name.startswith(f"{stopped.path}/checkpoints/")]
    assert newest.endswith("step-00000007.pt")
    assert not any("weights" in name for name in names)
    for name in names:
        (second / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if Path(name).is_dir() else shutil.copy)(name, second / name)
    result = run(second, *SWEEP)
    assert result.returncode == 0, result.stderr
    assert "going on at step" in result.stdout
    assert run(whole, *SWEEP).returncode == 0
    assert measured(second) == measured(whole)
    assert remains(second / stopped.path) == remains(whole / stopped.path)
    assert carried(second) == ["results"]
    logs = names.index(f"{stopped.path}/metrics.jsonl")
    assert names.index(newest) < logs  # what is copied later, while it trains, may know more


def test_before_anything_is_trained_there_is_nothing_to_name(folders):
    assert carried(folders[0]) == []
    assert [path.name for path in folders[0].iterdir()] == ["mini.toml"]
