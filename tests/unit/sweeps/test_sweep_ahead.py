"""Kinds that come later are compiled in processes of their own, and found in the compiler's cache."""

import contextlib
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import torch
from tiny_sweep import RECIPES, entries, remains, run_sweep
from torch._dynamo.utils import counters
from watching import alive, wait_for

from timestepper.recipe.load import load
from timestepper.sweeps.ahead import Ahead, kind_of

COMPILED = ("runtime.compile=true", "runtime.device=cpu", "run.epochs=1")


def recipe(*overrides):
    return load("smoke/digits", [*COMPILED, *overrides])


def wait_until_ready(ahead: Ahead, kind: str) -> None:
    wait_for(lambda: ahead.look() or ahead.ready(kind))


def started(ahead: Ahead) -> subprocess.Popen:
    """The one process that compiles."""
    ahead.look()
    ((process, _),) = ahead._running.values()
    return process


def test_what_compiled_code_depends_on_makes_a_kind():
    assert kind_of(recipe()) == kind_of(
        recipe("run.seed=1", "run.epochs=3", "optimiser.lr=1", "model.last_norm_init=0.5")
    )
    assert kind_of(recipe()) == kind_of(recipe("data.root=/elsewhere", "data.workers=2"))
    changes = ("controller.kind=lstm", "data.batch_size=32", "data.accumulate=2")
    for other in (*changes, "runtime.precision=bf16", "model.name=cifar/resnet14"):
        assert kind_of(recipe()) != kind_of(recipe(other)), other


def test_the_first_kind_and_what_is_not_compiled_wait_for_nothing():
    """Also where the first kind comes back later in the list, as plain networks with other starts do."""
    plain, other = recipe("runtime.compile=false", "data.batch_size=16"), recipe("controller.kind=lstm")
    with contextlib.closing(Ahead([recipe(), other, recipe("model.last_norm_init=0.5"), plain])) as ahead:
        ahead.look()
        assert ahead.ready(kind_of(recipe()))
        assert ahead.ready(kind_of(plain))
        assert not ahead.ready(kind_of(other))
        assert list(ahead._running) == [kind_of(other)]


def test_a_process_that_fails_is_told_of_and_holds_nothing_up():
    lost, told = recipe("data.name=cifar10", "data.root=/nowhere"), []
    with contextlib.closing(Ahead([recipe(), lost], told.append)) as ahead:
        assert not ahead.ready(kind_of(lost))
        wait_until_ready(ahead, kind_of(lost))
    assert told == ["compiling ahead has failed (exit 1); each run compiles for itself"]


def test_a_process_that_takes_too_long_is_ended(monkeypatch):
    other = recipe("controller.kind=lstm")
    with contextlib.closing(Ahead([recipe(), other])) as ahead:
        process = started(ahead)
        monkeypatch.setattr("timestepper.sweeps.ahead.LONGEST", 0.0)
        wait_until_ready(ahead, kind_of(other))
        assert process.returncode < 0


def test_closing_ends_what_still_compiles_and_removes_its_folder():
    ahead = Ahead([recipe(), recipe("controller.kind=lstm")])
    process, place = started(ahead), Path(ahead._place.name)
    assert place.is_dir()
    ahead.close()
    assert process.returncode < 0
    assert not place.exists()


def test_a_process_leaves_with_a_sweep_that_was_killed():
    """By itself it would not leave while we wait: a network of 1202 layers takes the compiler much longer."""
    changes = (*COMPILED, "model.name=cifar/resnet1202")
    program = (
        "import os, sys, time\n"
        "from timestepper.recipe.load import load\n"
        "from timestepper.sweeps.ahead import Ahead\n"
        f"recipes = [load('smoke/digits', [*{changes!r}, kind]) for kind in ('run.seed=0', 'controller.kind=lstm')]\n"
        "ahead = Ahead(recipes)\n"
        "ahead.look()\n"
        "print(*(process.pid for process, _ in ahead._running.values()), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as sweep:
        child = int(sweep.stdout.readline())
        sweep.kill()
    wait_for(lambda: not alive(child))


@pytest.fixture
def empty_cache(monkeypatch):
    """A name in all keys makes the cache an empty one; only machine code may be there from other tests."""
    name = uuid.uuid4().hex
    monkeypatch.setenv("TORCH_COMPILE_CACHE_KEY_TAG", name)
    with torch.compiler.config.patch(cache_key_tag=name):  # monkeypatch would leave torch without this setting
        yield


@pytest.mark.slow
def test_the_sweep_finds_what_was_compiled_ahead(tmp_path, monkeypatch, empty_cache):
    """And ends as it does where nothing is compiled."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process; code for a CPU depends on it
    torch._dynamo.reset()
    counters.clear()
    wanted = entries(tmp_path / "ahead", *COMPILED, recipes=RECIPES)
    assert [run.state for run in run_sweep(wanted)] == ["finished", "finished"]
    found, missed = (counters["inductor"][f"fxgraph_cache_{what}"] for what in ("hit", "miss"))
    assert found >= 3  # forward, backward and evaluation of the second kind
    assert missed <= 3
    torch._dynamo.reset()
    monkeypatch.setattr("timestepper.sweeps.one_gpu.Ahead", lambda recipes, tell: Ahead([]))
    again = entries(tmp_path / "alone", *COMPILED, recipes=RECIPES)
    run_sweep(again)
    assert [remains(entry.path) for entry in wanted] == [remains(entry.path) for entry in again]


def test_only_so_many_compile_at_a_time(monkeypatch):
    monkeypatch.setattr("timestepper.sweeps.ahead._AT_ONCE", 1)
    others = [recipe(f"data.batch_size={size}") for size in (16, 32)]
    with contextlib.closing(Ahead([recipe(), *others])) as ahead:
        ahead.look()
        assert not any(ahead.ready(kind_of(other)) for other in others)
        assert list(ahead._running) == [kind_of(others[0])]


def test_runs_whose_kind_is_ready_go_on_while_others_wait(tmp_path, monkeypatch):
    """The first run to begin is the second of the list, because the first one's kind is not ready before that ends."""
    wanted = entries(tmp_path, recipes=RECIPES)
    ended = wanted[1].path / "record.json"

    class Waiting(Ahead):
        def ready(self, kind: str) -> bool:
            return kind == kind_of(wanted[1].recipe) or ended.exists()

    monkeypatch.setattr("timestepper.sweeps.one_gpu.Ahead", Waiting)
    assert [run.state for run in run_sweep(wanted)] == ["finished", "finished"]
    assert ended.stat().st_mtime < min(path.stat().st_mtime for path in wanted[0].path.glob("checkpoints/*"))
