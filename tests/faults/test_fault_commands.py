"""sweep, reproduce, report and fold killed at any moment, clocks that jump, and a run of an older version: T35, T40."""

import functools
import os
import shutil
import time
from pathlib import Path

import pytest
import runs
from counts import count
from processes import command, fresh_command, under_fire
from stopping import drive
from watching import wait_for

RECIPE = [*runs.SHORT, "run.checkpoint_steps=2"]
SET = f"""
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise"]
[[train]]
base = "smoke/digits"
overrides = {RECIPE[1:]}
hours = 0.01
"""
FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)
ROOT = Path(__file__).parents[2]
OLD = ROOT / "tests" / "compatibility" / "v0.1.0"


def start(arguments: list[str], folder: Path):
    """A command in a folder of its own, where it finds the set ``mini.toml``."""
    folder.mkdir(exist_ok=True)
    (folder / "mini.toml").write_text(SET)
    return command(arguments, folder, prepare=functools.partial(os.chdir, folder))


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> list[Path]:
    """The two runs, each trained alone and undisturbed."""
    found = [tmp_path_factory.mktemp("alone") / f"seed{seed}" for seed in (0, 1)]
    for seed, run in enumerate(found):
        assert drive(runs.train(run, f"run.seed={seed}", recipe=RECIPE)) is None
    return found


KILLED = {
    "sweep": ["sweep", *RECIPE, "--seeds", "0,1", "--out", "runs"],
    "reproduce": ["reproduce", "mini.toml", "--jobs", "2"],
}


@count("T35")
@pytest.mark.parametrize("name", KILLED)
def test_t35_killed_at_random_times_ends_byte_equal(name, times, tmp_path, alone, chance, figure):
    ended = under_fire(
        lambda folder: start(KILLED[name], folder),
        tmp_path,
        times,
        moment=lambda job, folder: time.sleep(chance.uniform(0, 3)),
    )
    for folder in ended:
        found = sorted(path.parent for path in folder.rglob("runs/**/record.json"))
        assert [runs.differing(run, reference) for run, reference in zip(found, alone, strict=True)] == [[], []]
        assert list(folder.rglob("*.tmp")) == []
        if name == "reproduce":
            assert len(list((folder / "results").glob("*.json"))) == 2
    figure(kills=times, folders=len(ended))


def report_of(folder: Path, alone: list[Path]) -> list[str]:
    """Arguments of a report; it writes page.html and page.md."""
    (folder / "results").mkdir()
    for run in alone:
        shutil.copy(run / "record.json", folder / "results" / f"{run.name}.json")
    return ["report", "--results", "results", "--claims", str(few_claims(folder)), "--out", "page.html"]


def fold_of(folder: Path, _: list[Path]) -> list[str]:
    """Arguments of a fold; it writes page.safetensors and its sum."""
    run = folder / "stepped"
    assert drive(runs.train(run, "run.epochs=1", recipe=["smoke/digits-lstm", *RECIPE[1:]])) is None
    return ["fold", str(run), "-o", "page.safetensors"]


@count("T35")
@pytest.mark.parametrize("arguments_of", [report_of, fold_of])
def test_t35_a_killed_report_or_fold_leaves_old_files_or_new(arguments_of, times, tmp_path, alone, chance, figure):
    arguments = arguments_of(tmp_path, alone)
    started = time.monotonic()
    with start(arguments, tmp_path) as job:
        assert job.wait() == 0, job.stderr
    lasts = time.monotonic() - started
    whole = {path: path.read_bytes() for path in tmp_path.glob("page.*")}
    assert len(whole) == 2
    for number in range(times):
        for path, content in whole.items():
            path.write_bytes(b"old" if number % 2 else content)
        with start(arguments, tmp_path) as job:
            time.sleep(chance.uniform(0, lasts))
            job.kill()
        for path, content in whole.items():
            assert path.read_bytes() in (b"old", content)
    with start(arguments, tmp_path) as job:
        assert job.wait() == 0, job.stderr
    assert {path: path.read_bytes() for path in tmp_path.glob("page.*")} == whole
    figure(kills=times)


def few_claims(folder: Path) -> Path:
    """One claim file, where all of them take ten seconds."""
    (folder / "claims").mkdir()
    shutil.copy(ROOT / "claims" / "fig5.toml", folder / "claims")
    return folder / "claims"


@pytest.mark.skipif(FAKETIME is None, reason="needs libfaketime (apt-get install faketime)")
def test_clocks_that_jump_change_nothing(tmp_path, alone):
    """Years forward and back, again and again, while a run is trained with checkpoints by the clock."""
    clock, run = tmp_path / "clock", tmp_path / "run"
    clock.write_text("+0")
    faked = {"LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    before = ["env", "FAKETIME_DONT_FAKE_MONOTONIC=1", *(f"{name}={value}" for name, value in faked.items())]
    jumps = 0

    def jump() -> bool:
        nonlocal jumps
        clock.write_text(("-20y", "+30y", "+0")[jumps % 3])
        jumps += 1
        return job.poll() is not None

    changes = ("run.seed=0", "run.checkpoint_seconds=0.01")
    with fresh_command(runs.train(run, *changes, recipe=RECIPE), tmp_path, before=before) as job:
        wait_for(jump, pause=0.02)
        assert job.wait() == 0, job.stderr
    assert jumps > 10
    assert runs.differing(run, alone[0]) == []


def test_t40_a_run_of_an_older_version_is_read_and_goes_on(tmp_path, cli):
    """Stopped in the middle of its second epoch by version 0.1.0 of November 2026, before any later change."""
    run = runs.copy(OLD / "resnet8-stopped", tmp_path / "run")
    assert cli("evaluate", str(run)).code == 0
    assert "interrupted" in cli("list", str(tmp_path)).out
    outcome = cli(*runs.train(run, recipe=RECIPE))
    assert outcome.code == 0, outcome.err
    assert "going on at step 8" in outcome.out
    assert runs.state_of(run) == "finished"
    assert runs.logged_steps(run) == list(range(1, 11))
    claims, results = str(few_claims(tmp_path)), tmp_path / "results"
    results.mkdir()
    shutil.copy(OLD / "resnet8-lstm" / "record.json", results)
    outcome = cli("report", "--results", str(results), "--claims", claims, "--out", str(tmp_path / "p.html"))
    assert outcome.code == 0, outcome.err
    assert "1 records" in outcome.out
