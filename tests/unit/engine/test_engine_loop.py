import itertools
import json
import math
import resource
import shutil
from typing import ClassVar

import pytest
import torch
from tiny_training import BATCH, EPOCHS, STEPS, close, end_state, network, trained, training, vanished
from torch import nn

from timestepper.engine.distributed import Group
from timestepper.engine.journal import Journal
from timestepper.engine.metrics import Sums
from timestepper.engine.observer import Observation, Observer
from timestepper.engine.signals import Signals
from timestepper.errors import DiskFullError, DivergedError

TOTAL = EPOCHS * STEPS


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, end_state(trained(folder))


def assert_same_end(run, folder, uninterrupted):
    whole, tensors = uninterrupted
    assert all(torch.equal(a, b) for a, b in zip(end_state(run), tensors, strict=True))
    assert (folder / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    last = f"checkpoints/step-{TOTAL:08d}.pt"
    assert (folder / last).read_bytes() == (whole / last).read_bytes()


def test_it_yields_each_step_and_each_evaluated_batch():
    run = training()
    assert list(run.steps()) == [1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9, 10, 10, 10]


def test_each_update_is_made_with_the_rate_of_its_own_step():
    run, used = training(), {}
    for step in run.steps():
        used.setdefault(step, float(run.optimiser.param_groups[0]["lr"]))
    assert list(used.values()) == pytest.approx([0.1] * 5 + [0.01] * 3 + [0.001] * 2)


class Draws(nn.Module):
    """A network that notes a random number of every update, as dropout would draw it."""

    def __init__(self):
        super().__init__()
        self.inner, self.drawn = network(), []

    def forward(self, images):
        if self.training:
            self.drawn.append(torch.rand(()).item())
        return self.inner(images)


def test_random_numbers_belong_to_seed_step_and_rank():
    def drawn(seed, rank=0):
        model = Draws()
        training(model=model, seed=seed, group=Group(rank, 2)).run()
        return model.drawn

    first, other_seed, other_rank = drawn(0), drawn(1), drawn(0, rank=1)
    assert first == drawn(0)
    assert len({*first, *other_seed, *other_rank}) == 3 * TOTAL


def test_it_learns():
    run = trained(epochs=30)
    assert run.best["error"] < 0.2


@pytest.mark.parametrize("step", range(1, TOTAL + 1))
def test_resume_is_exact_at_every_step(step, tmp_path, uninterrupted):
    vanished(step, tmp_path / "run", checkpoint_steps=1)
    second = training(tmp_path / "run", checkpoint_steps=1)
    assert second.step == (step if step % STEPS else step - 1)  # an epoch's end is saved after its evaluation
    second.run()
    assert_same_end(second, tmp_path / "run", uninterrupted)


def test_a_copy_taken_at_any_moment_resumes_exactly(tmp_path, uninterrupted):
    """What kill -9 leaves behind, without the process: the folder as it is after every yield."""
    run = training(tmp_path / "run", checkpoint_steps=3)
    copies = []
    for count, _ in enumerate(run.steps()):
        copies.append(tmp_path / f"copy-{count}")
        shutil.copytree(tmp_path / "run", copies[-1])
    close(run)
    for copy in copies:
        again = trained(copy, checkpoint_steps=3)
        assert_same_end(again, copy, uninterrupted)


def test_saving_is_asked_for_by_signal_and_by_clock(tmp_path):
    signals = Signals()
    run = training(tmp_path / "run", signals=signals, checkpoint_epochs=0)
    steps = run.steps()
    next(steps)
    signals.save = 1
    next(steps)
    assert [path.name for path in sorted((tmp_path / "run/checkpoints").iterdir())][-1] == "step-00000002.pt"
    assert signals.save == 0
    next(steps)
    assert not (tmp_path / "run/checkpoints/step-00000003.pt").exists()
    close(run)
    clocked = training(tmp_path / "clock", checkpoint_seconds=1e-9)
    next(clocked.steps())
    assert (tmp_path / "clock/checkpoints/step-00000001.pt").exists()
    close(clocked)


def test_metrics_have_every_step_once_and_agree_with_the_schedule(uninterrupted):
    folder, _ = uninterrupted
    found = lines(folder)
    steps = [line for line in found if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, TOTAL + 1))
    assert [line["lr"] for line in steps] == pytest.approx([0.1] * 5 + [0.01] * 3 + [0.001] * 2)
    epochs = [line for line in found if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2]
    chunks = [steps[start : start + STEPS] for start in range(0, TOTAL, STEPS)]
    for line, chunk in zip(epochs, chunks, strict=True):
        assert line["train"]["loss"] == pytest.approx(sum(s["loss"] for s in chunk) / STEPS)
        assert line["test"]["samples"] == 13


def test_sums_weigh_each_update_by_its_samples():
    sums = Sums()
    assert sums.means() == {}
    sums.add(1.0, 3, 3)
    sums.add(5.0, 0, 1)
    assert sums.means() == {"loss": 2.0, "error": 0.25}
    assert Sums(sums.values).means() == sums.means()


def test_progress_is_told_of_loss_accuracy_and_images(uninterrupted):
    class Told(Journal):
        rows: ClassVar = []

        def step(self, step, epoch, loss, accuracy, images):
            self.rows.append((step, epoch, loss, accuracy, images))

    run = training()
    run.journal = Told()
    run.run()
    steps = [line for line in lines(uninterrupted[0]) if line["kind"] == "step"]
    assert Told.rows == [(line["step"], line["epoch"], line["loss"], 1 - line["error"], BATCH) for line in steps]


def test_intervals_are_means_and_survive_a_resume(tmp_path, uninterrupted):
    vanished(7, tmp_path / "run", log_steps=4, checkpoint_steps=3)
    again = training(tmp_path / "run", log_steps=4, checkpoint_steps=3)
    assert again.step == 6
    again.run()
    close(again)
    single = {line["step"]: line["loss"] for line in lines(uninterrupted[0]) if line["kind"] == "step"}
    logged = {line["step"]: line["loss"] for line in lines(tmp_path / "run") if line["kind"] == "step"}
    assert logged == {
        end: pytest.approx(sum(single[step] for step in range(end - 3, end + 1)) / 4, rel=1e-12) for end in (4, 8)
    }


def test_best_is_kept_across_a_resume_and_is_not_the_last(tmp_path):
    run = trained(tmp_path / "run", epochs=8, lr=0.5)
    errors = [line["test"]["error"] for line in lines(tmp_path / "run") if line["kind"] == "epoch"]
    assert run.best["error"] == min(errors)
    assert errors[run.best["epoch"] - 1] == min(errors)
    again = training(tmp_path / "run", epochs=8, lr=0.5)
    assert again.best == run.best
    close(again)


def test_the_first_of_equally_good_epochs_is_the_best():
    run = trained(model=network(norm=False), epochs=3, lr=1e-12)
    assert run.best["epoch"] == 1


def test_evaluation_can_be_rare_but_the_last_epoch_has_one(tmp_path):
    trained(tmp_path / "run", epochs=5, evaluate_epochs=2)
    assert ["test" in line for line in lines(tmp_path / "run") if line["kind"] == "epoch"] == [0, 1, 0, 1, 1]


def test_checkpoints_can_be_rare_but_the_last_step_has_one(tmp_path):
    trained(tmp_path / "run", epochs=5, checkpoint_epochs=3)
    assert [path.name for path in sorted((tmp_path / "run/checkpoints").iterdir())] == [
        "step-00000015.pt",
        "step-00000025.pt",
    ]


def test_checkpoints_by_steps_come_at_the_end_of_an_epoch_too(tmp_path):
    run = training(tmp_path / "run", epochs=3, checkpoint_epochs=0, checkpoint_steps=STEPS)
    for done in run.steps():
        if done > STEPS:
            break
    close(run)
    assert (tmp_path / f"run/checkpoints/step-{STEPS:08d}.pt").exists()


def test_the_clock_asks_once_for_each_time_that_has_passed(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    run = training(tmp_path / "run", checkpoint_epochs=0, checkpoint_seconds=10)
    saved = []
    for done in run.steps():
        saved.append((run.journal.last_saved().rpartition("step-")[2], done))
        now += 6
        if done == 4:
            break
    close(run)
    assert saved == [("00000000.pt", 1), ("00000000.pt", 2), ("00000003.pt", 3), ("00000003.pt", 4)]


class Half(Observer):
    def look(self):
        return Observation({"step_size/a": 0.5}, {"step_sizes/a": [0.4, 0.6]}, {"dt a": 0.5})


def test_what_the_caller_observes_is_logged(tmp_path):
    trained(tmp_path / "run", observer=Half())
    last = lines(tmp_path / "run")[-1]
    assert last["scalars"] == {"step_size/a": 0.5}
    assert last["profiles"] == {"step_sizes/a": [0.4, 0.6]}


def test_runs_can_be_interleaved_in_one_process(tmp_path, uninterrupted):
    runs = [training(tmp_path / name) for name in ("a", "b")]
    for _ in itertools.zip_longest(*(run.steps() for run in runs)):
        pass
    for run, name in zip(runs, ("a", "b"), strict=True):
        close(run)
        assert_same_end(run, tmp_path / name, uninterrupted)


class Poisoned(nn.Module):
    """A network whose output (or gradient) is not finite at one update."""

    def __init__(self, at, where):
        super().__init__()
        self.inner, self.at, self.where, self.calls = network(), at, where, 0

    def forward(self, images):
        self.calls += self.training
        logits = self.inner(images)
        if self.training and self.calls == self.at:
            if self.where == "loss":
                return logits * math.nan
            logits.register_hook(lambda gradient: gradient * math.inf)
        return logits


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("at", [1, 4, 7])
def test_a_non_finite_step_stops_before_the_update(tmp_path, where, at):
    run = training(tmp_path / "run", model=Poisoned(at, where), checkpoint_steps=1)
    steps = run.steps()
    while run.step < at - 1:
        next(steps)
    weights = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises(DivergedError, match=rf"step {at}: loss .* on rank 0 at .* with the weights of step {at - 1};"):
        list(steps)
    assert all(torch.equal(a, b) for a, b in zip(weights, run.model.parameters(), strict=True))
    close(run)
    saved = training(tmp_path / "run", model=Poisoned(0, where))
    assert saved.step == at - 1
    assert all(value.isfinite().all() for value in saved.model.state_dict().values())
    close(saved)


def test_a_log_that_cannot_grow_is_a_full_disk(tmp_path):
    run = training(tmp_path / "run")
    steps = run.steps()
    next(steps)
    size = (tmp_path / "run/metrics.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(DiskFullError, match=r"No space left for .*metrics\.jsonl"):
            next(steps)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    close(run)
    trained(tmp_path / "run")
    assert [line["step"] for line in lines(tmp_path / "run") if line["kind"] == "step"] == list(range(1, TOTAL + 1))


@pytest.mark.parametrize("every", [2, 4])  # saved at 6, or at 4, before the end of an epoch whose time was noted
def test_times_are_kept_apart_and_cover_every_image(tmp_path, every):
    vanished(7, tmp_path / "run", checkpoint_steps=every, checkpoint_epochs=0)
    second = training(tmp_path / "run", checkpoint_steps=every, checkpoint_epochs=0)
    assert second.step == {2: 6, 4: 4}[every]
    second.run()
    close(second)
    times = [json.loads(line) for line in (tmp_path / "run/timing.jsonl").read_text().splitlines()]
    assert sum(line["images"] for line in times) == TOTAL * BATCH
    assert all(line["seconds"] > 0 for line in times)


def test_tensorboard_has_every_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = {"tensorboard": True, "checkpoint_steps": 2, "observer": Half()}
    vanished(7, tmp_path / "run", **options)
    trained(tmp_path / "run", **options)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, TOTAL + 1))
    assert [event.step for event in events.Scalars("epoch/test_error")] == [5, 10]
    assert [event.step for event in events.Images("step_sizes/a")] == [5, 10]
