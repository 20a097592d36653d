"""A loss or a gradient that is not finite: T14."""

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
import torch
from outcomes import errors_of
from processes import command, ranks, torchrun
from torch import Tensor, nn
from watching import Watch

from timestepper.engine import distributed
from timestepper.engine.journal import FolderJournal, Journal
from timestepper.engine.loop import Training, TrainingPlan
from timestepper.engine.optimiser import build
from timestepper.engine.progress import Display
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import Runtime
from timestepper.engine.schedule import Schedule
from timestepper.errors import DivergedError
from timestepper.records import load_diverged

BAD_STEP = 6  # counted from 1
DIVERGING = [*runs.DIGITS, "optimiser.lr=1e30"]


class Batches:
    """Random images; one batch of one rank is spoilt."""

    samples, steps = 80, 10

    def __init__(self, spoil: float | None):
        self.spoil = spoil

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(first_step, self.steps):
            images = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            if self.spoil is not None and step + 1 == BAD_STEP:
                images[0, 0] = self.spoil
            yield images, torch.arange(8) % 3


class Root(nn.Module):
    """A linear layer behind a square root: where the root meets a zero, the loss is finite and its gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer((images * self.scale).abs().sqrt())


def train_one_rank(spoilt_rank: int, spoil: float, run: Path) -> None:
    """One of two processes; only the spoilt one sees the bad batch."""
    torch.manual_seed(0)
    group = distributed.start(torch.device("cpu"), 20)
    folder = RunDirectory(run) if group.rank == 0 else None
    journal = None
    if folder is not None:
        options = {"identity": {"model": "root"}, "recipe": "", "steps": 10, "epochs": 1, "tensorboard": False}
        journal = FolderJournal(folder, display=Display(quiet=True), **options)
        journal.open(journal.find())
    model = Root()
    training = Training(
        model,
        build([{"params": model.parameters()}], lr=0.1),
        Schedule(lr=0.1, epochs=1, steps_per_epoch=10, law="constant"),
        Batches(spoil if group.rank == spoilt_rank else None),
        None,
        plan=TrainingPlan(log_steps=1, checkpoint_steps=1),
        runtime=Runtime(torch.device("cpu")),
        journal=journal or Journal(),
        group=group,
    )
    training.load(None)
    before = {}
    try:
        for step in training.steps():
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()} | {"step": step}
    except DivergedError as error:
        untouched = all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        print(f"{before['step']} {untouched} {error}")
        raise SystemExit(1) from None
    finally:
        distributed.stop()


@pytest.mark.parametrize(("kind", "spoil"), [("loss", float("nan")), ("gradient", 0.0)])
@pytest.mark.parametrize("rank", [0, 1])
def test_t14_one_bad_rank_stops_all_before_the_update(kind, spoil, rank, tmp_path, unused_port, figure):
    run = tmp_path / "run"
    main = functools.partial(train_one_rank, rank, spoil, run)
    with Watch() as watch, ranks(main, tmp_path, unused_port) as jobs:
        assert [job.wait() for job in jobs] == [1, 1], jobs[0].stderr + jobs[1].stderr
    for job in jobs:
        last, untouched, message = job.stdout.split(" ", 2)
        assert (last, untouched) == (str(BAD_STEP - 1), "True")
        assert message.startswith(f"step {BAD_STEP}: loss {'nan' if kind == 'loss' else ''}")
        assert "at learning rate 0.1" in message
        if kind == "loss":
            assert f"on rank {rank} " in message
        else:
            assert "gradient norm inf" in message or "gradient norm nan" in message
    assert runs.newest(run)["step"] == BAD_STEP - 1
    assert all(bool(tensor.isfinite().all()) for tensor in runs.newest(run)["model"].values())
    figure(seconds=watch.seconds)


def test_t14_a_diverging_run_says_where_and_saves_no_nan(tmp_path, cli):
    run = tmp_path / "run"
    outcome = cli(*runs.train(run, "run.checkpoint_steps=1", recipe=DIVERGING))
    message = outcome.refused(1)
    assert message.startswith("step ")
    assert "at learning rate 1e+30" in message
    assert "on rank 0" in message
    assert runs.state_of(run) == "failed"
    for path in runs.checkpoints(run):
        state = runs.read(path)
        assert all(bool(t.isfinite().all()) for t in [*state["model"].values(), *state["momentum"]])


def test_a_run_that_diverges_is_told_among_the_results(cli, tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.html"
    message = cli(*runs.train(tmp_path / "run", "--results", str(results), recipe=DIVERGING)).refused(1)
    again = runs.train(tmp_path / "other", "run.log_steps=3", "--results", str(results), recipe=DIVERGING)
    cli(*again).refused(1)
    assert len(load_diverged(results)[0]) == 2  # whose names are the same but for that
    max((results / "diverged").iterdir(), key=lambda path: len(path.name)).unlink()
    (found,), problems = load_diverged(results)
    assert (found.error, found.seed, found.subject.label, problems) == (message, 0, "plain", [])
    assert message.startswith(f"step {found.step}: ")
    assert cli("report", "--results", str(results), "--out", str(page)).code == 0
    name = Path(found.path).stem
    assert f" | 1e+30 | {found.step} | {found.commit[:10]} |" in page.with_suffix(".md").read_text(encoding="utf-8")
    text = Path(found.path).read_text(encoding="utf-8")
    assert '"world": 1' in text  # norms see as many images as there are for each process
    for damaged in (text.replace(f'"step": {found.step}', '"step": 99'), "[]", "{", ""):
        Path(found.path).write_text(damaged, encoding="utf-8")
        none, (problem,) = load_diverged(results)
        assert (none, name in problem) == ([], True)


def test_a_divergence_that_cannot_be_written_down_is_told(cli, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    (results / "diverged").write_text("a file", encoding="utf-8")
    outcome = cli(*runs.train(tmp_path / "run", "--results", str(results), recipe=DIVERGING))
    assert outcome.refused(1).startswith("step ")
    assert f"could not write down in {results} that this run diverged: " in outcome.out + outcome.err
    assert load_diverged(results)[1] == [
        f"{results / 'diverged'}: cannot be read (Not a directory); runs that diverged may be missing, look at it"
    ]


def test_a_sweep_does_not_try_again_what_diverged(cli, tmp_path):
    results = str(tmp_path / "results")
    command = ["sweep", *DIVERGING, "--seeds", "0,1", "--out", str(tmp_path / "runs"), "--results", results]
    assert cli(*command).code == 1
    again = cli(*command)
    assert again.code == 0
    assert (
        f"2 of 2 runs diverged and are skipped; to train them again, remove their files in {results}"
        in again.out + again.err
    )
    for file in (tmp_path / "results" / "diverged").iterdir():
        file.unlink()
    assert cli(*command).code == 1


def test_t14_torchrun_does_not_go_round_in_circles(tmp_path, figure):
    run = tmp_path / "run"
    with torchrun(runs.train(run, recipe=DIVERGING), tmp_path, "--max-restarts", "3") as job:
        while runs.state_of(run) not in ("failed", "killed") and job.poll() is None:
            job.offspring()
            time.sleep(0.05)
        with Watch() as watch:
            assert job.wait() != 0
        assert job.survivors() == []
        errors = errors_of(job.stderr)
    diverged = [line for line in errors if line.startswith("step ")]
    assert len(diverged) == 2, errors  # each rank once, whatever the restarts
    assert all(line.startswith("not restarted, because") for line in errors if line not in diverged)
    figure(seconds=watch.seconds)
    with command(runs.train(run, "optimiser.lr=0.1", "--override", recipe=runs.DIGITS), tmp_path) as job:
        assert job.wait() == 0, job.stderr
