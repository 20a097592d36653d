"""Stopped at an exact place and resumed, with the same or other numbers of workers and processes: T4, T5, T6."""

import functools

import pytest
import runs
from processes import fork, ranks
from stopping import drive

# 5 updates and 2 evaluated batches an epoch: 14 places to stop at in 2 epochs, and the one before the first.
PLACES = 14
RATES = [0.1] * 5 + [0.01] * 3 + [0.001] * 2


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    run = tmp_path_factory.mktemp("short") / "run"
    assert drive(runs.train(run, recipe=runs.SHORT)) is None
    return run


def goes_on_to_the_same_end(run, reference):
    assert drive(runs.train(run, recipe=runs.SHORT)) is None
    assert runs.differing(run, reference) == []
    assert runs.logged_steps(run) == list(range(1, 11))
    assert [line["lr"] for line in runs.log(run) if line["kind"] == "step"] == pytest.approx(RATES, rel=1e-12)


def test_t4_asked_to_stop_at_every_place(tmp_path, short_run):
    for place in range(PLACES + 1):
        run = tmp_path / f"run-{place}"
        stopped = drive(runs.train(run, recipe=runs.SHORT), signal_after=place)
        epoch, inside = divmod(place, 7)
        assert stopped == 5 * epoch + (min(inside + 1, 5) if inside else 0), place
        assert runs.newest(run)["step"] == stopped
        assert runs.state_of(run) == "interrupted"
        goes_on_to_the_same_end(run, short_run)


def test_t4_gone_after_every_place(tmp_path, short_run):
    for place in range(1, PLACES + 1):
        run = tmp_path / f"run-{place}"
        drive(runs.train(run, "run.checkpoint_steps=1", recipe=runs.SHORT), vanish_after=place)
        epoch, inside = divmod(place - 1, 7)  # the checkpoint of an epoch's last update comes after the evaluation
        assert runs.newest(run)["step"] == 5 * epoch + min(inside + 1, 4), place
        goes_on_to_the_same_end(run, short_run)


def test_t5_resumed_twice_in_an_epoch_with_other_numbers_of_workers(tmp_path, folder_run, image_folder):
    run, recipe = tmp_path / "run", runs.folder_recipe(image_folder)
    for workers, place in ((0, 4), (1, 3), (4, 5), (2, None)):
        arguments = runs.train(run, f"data.workers={workers}", recipe=recipe)
        job = fork(functools.partial(drive, arguments, place), tmp_path)
        assert job.wait() == 0, job.stderr
    assert runs.differing(run, folder_run) == []


def test_t6_resumed_with_another_number_of_processes(tmp_path, unused_port):
    run = tmp_path / "run"
    assert drive(runs.train(run, recipe=runs.SHORT), signal_after=2) == 3
    with ranks(runs.train(run, recipe=runs.SHORT), tmp_path, unused_port) as (first, second):
        assert first.wait() == 0, first.stderr
        assert second.wait() == 0, second.stderr
        told = [line for line in first.stdout.splitlines() if "processes" in line]
    assert told == ["going on with 2 processes after 1; the global batch stays 256"]
    assert second.stdout == ""
    assert runs.newest(run)["step"] == 10
    assert runs.logged_steps(run) == list(range(1, 11))
    assert runs.state_of(run) == "finished"
