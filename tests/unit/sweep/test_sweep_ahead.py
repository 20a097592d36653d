"""Kinds that come later are compiled in processes of their own, and found in the compiler's cache."""

import contextlib
import time

import pytest
import torch
from tiny_sweep import RECIPES, entries, remains, run_sweep
from torch._dynamo.utils import counters

from timestepper.experiment.load import load
from timestepper.experiment.sweep_ahead import Ahead, kind_of

COMPILED = ("runtime.compile=true", "runtime.device=cpu", "run.epochs=1")


def recipe(*overrides):
    return load("smoke/digits", [*COMPILED, *overrides])


def waited(ahead: Ahead, kind: str) -> float:
    """Seconds until a kind is ready."""
    start = time.monotonic()
    while not ahead.ready(kind):
        assert time.monotonic() - start < 120
        time.sleep(0.05)
    return time.monotonic() - start


def test_what_compiled_code_depends_on_makes_a_kind():
    assert kind_of(recipe()) == kind_of(
        recipe("run.seed=1", "run.epochs=3", "optimiser.lr=1", "model.last_norm_init=0.5")
    )
    for other in ("controller.kind=lstm", "data.batch_size=32", "runtime.precision=bf16", "model.name=cifar/resnet14"):
        assert kind_of(recipe()) != kind_of(recipe(other)), other


def test_the_first_kind_and_what_is_not_compiled_wait_for_nothing():
    plain = recipe("runtime.compile=false", "data.batch_size=16")
    with contextlib.closing(Ahead([recipe(), recipe("run.seed=1"), plain])) as ahead:
        assert ahead.ready(kind_of(recipe()))
        assert ahead.ready(kind_of(plain))
        assert not ahead._running


def test_a_process_that_fails_holds_nothing_up():
    lost = recipe("data.name=cifar10", "data.root=/nowhere")
    with contextlib.closing(Ahead([recipe(), lost])) as ahead:
        assert not ahead.ready(kind_of(lost))
        waited(ahead, kind_of(lost))


def test_a_process_that_takes_too_long_is_ended(monkeypatch):
    other = recipe("controller.kind=lstm")
    with contextlib.closing(Ahead([recipe(), other])) as ahead:
        assert not ahead.ready(kind_of(other))
        ((process, _),) = ahead._running.values()
        monkeypatch.setattr("timestepper.experiment.sweep_ahead.LONGEST", 0.0)
        assert waited(ahead, kind_of(other)) < 10
        assert process.returncode < 0


def test_closing_ends_what_still_compiles():
    ahead = Ahead([recipe(), recipe("controller.kind=lstm")])
    ahead.ready("")
    ((process, _),) = ahead._running.values()
    ahead.close()
    assert process.returncode < 0


@pytest.mark.slow
def test_the_sweep_finds_what_was_compiled_ahead(tmp_path, monkeypatch):
    """And ends as it does where nothing is compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process; code for a CPU depends on it
    torch._dynamo.reset()
    counters.clear()
    wanted = entries(tmp_path / "ahead", *COMPILED, recipes=RECIPES)
    assert [run.outcome for run in run_sweep(wanted)] == ["finished", "finished"]
    found, missed = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
    assert found >= 3  # forward, backward and evaluation of the second kind
    assert missed <= 3
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    monkeypatch.setattr("timestepper.experiment.sweep.Ahead", lambda recipes: Ahead([]))
    again = entries(tmp_path / "alone", *COMPILED, recipes=RECIPES)
    run_sweep(again)
    assert [remains(entry.path) for entry in wanted] == [remains(entry.path) for entry in again]
