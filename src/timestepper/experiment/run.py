"""Train, resume and finish a run."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timestepper import saving
from timestepper.engine import distributed
from timestepper.engine.distributed import Group
from timestepper.engine.files import disk_full, is_full
from timestepper.engine.journal import FolderJournal, Journal
from timestepper.engine.loop import Interrupted, Training
from timestepper.engine.progress import Display
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import Runtime, choose_device
from timestepper.engine.signals import Signals
from timestepper.errors import TimestepperError
from timestepper.experiment import build, finish, record
from timestepper.experiment.load import dump
from timestepper.experiment.resume import reconcile
from timestepper.experiment.schema import Recipe


@dataclass(frozen=True)
class Request:
    """What was asked for. ``folder`` is None in every process but the first."""

    recipe: Recipe
    name: str
    folder: RunDirectory | None
    signals: Signals
    override: bool = False
    dist_timeout: float = 600.0
    results: Path | None = None


def train(request: Request) -> dict[str, Any]:
    """Train to the end, from where the run directory stands; the final figures (empty but in the first process)."""
    recipe = request.recipe
    device = choose_device(recipe.runtime.device, distributed.local_rank())
    display = Display(quiet=request.folder is None)
    group = Group(device=device)
    position = _Position()
    with _told(request, position, display):
        try:
            group = distributed.start(device, request.dist_timeout)
            data = build.dataset(recipe)
            runtime = build.runtime(recipe, device, display.say)
            _train(request, data, runtime, group, display, position)
        except RuntimeError as error:
            raise distributed.explain(error, group, position.step) or error from error
        finally:
            distributed.stop()
        if request.folder is None:
            return {}
        return _finish(request, data, runtime, group.world, display, position)


@dataclass
class _Position:
    """How far a run has come, for messages."""

    journal: FolderJournal | None = None
    training: Training | None = None

    @property
    def step(self) -> int:
        return self.training.step if self.training else 0


def _train(request: Request, data: Any, runtime: Runtime, group: Group, display: Display, position: _Position) -> None:
    recipe = request.recipe
    train, test = (
        build.train_loader(recipe, data.train, runtime, group),
        build.test_loader(recipe, data.test, runtime, group),
    )
    schedule = build.schedule(recipe, train.steps)
    model = build.network(recipe, data.train)
    if recipe.runtime.sync_bn and group.active:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = runtime.place(model)
    journal: Journal = Journal()
    state: dict[str, Any] | None = None

    def open_folder() -> None:
        nonlocal journal, state
        assert request.folder is not None
        position.journal = journal = FolderJournal(
            request.folder,
            identity=build.identity(recipe, data.train),
            recipe=dump(recipe),
            steps=schedule.steps,
            epochs=recipe.run.epochs,
            display=display,
            tensorboard=recipe.run.tensorboard,
        )
        state = journal.find()
        if state is not None:
            where = str(request.folder.path)
            state = reconcile(
                state,
                recipe,
                samples=train.samples,
                world=group.world,
                override=request.override,
                where=where,
                say=display.say,
            )
            display.say(f"going on at step {state['step']} of {schedule.steps} in {where}")
        journal.open(state)

    group.agree(open_folder)
    training = Training(
        model,
        build.optimiser(recipe, model),
        schedule,
        train,
        test,
        plan=build.plan(recipe),
        runtime=runtime,
        journal=journal,
        group=group,
        signals=request.signals,
        observe=build.observe(recipe, model),
    )
    position.training = training
    training.load(state)
    training.run()


def _finish(
    request: Request, data: Any, runtime: Runtime, world: int, display: Display, position: _Position
) -> dict[str, Any]:
    """Evaluate what was saved, from the file, on a fresh network; export it; write the record."""
    assert request.folder is not None
    assert position.journal is not None
    run = request.folder.path

    def poll() -> None:
        if request.signals.stop:
            raise Interrupted(request.signals.stop, position.step)

    trained = finish.restore(run, request.recipe, data, display.say)
    saving.write_tensors(trained.model.state_dict(), run / finish.WEIGHTS)
    epochs = finish.epochs_of(run)
    final = {"train": epochs[-1]["train"], "best": trained.state["best"]} | finish.evaluate(trained, runtime, poll)
    made = record.make(
        request.recipe,
        name=request.name,
        run=run,
        data_sha256=data.sha256,
        device=device_name(runtime.device),
        epochs=epochs,
        final=final,
        step_sizes=finish.final_step_sizes(trained.model),
        world=world,
    )
    record.write(made, run / record.RECORD)
    if request.results is not None:
        record.write(made, request.results / record.file_name(made))
    position.journal.status("finished", position.step, test_error=final["test"]["error"])
    return final


@contextlib.contextmanager
def _told(request: Request, position: _Position, display: Display) -> Iterator[None]:
    """Write into status.json how it ended; turn a full disk into its own error."""
    try:
        yield
    except Interrupted as stop:
        _status(position, "interrupted", signal=stop.signal)
        raise
    except BaseException as error:
        if is_full(error) and not isinstance(error, TimestepperError):
            where = request.folder.path if request.folder else Path.cwd()
            _status(position, "failed", error=str(error))
            raise disk_full(where / "metrics", 0) from error
        _status(position, "failed", error=f"{type(error).__name__}: {error}")
        raise
    finally:
        display.stop()
        if position.journal is not None:
            with contextlib.suppress(Exception):
                position.journal.close()


def _status(position: _Position, state: str, **fields: Any) -> None:
    if position.journal is not None:
        with contextlib.suppress(Exception):
            position.journal.status(state, position.step, **fields)


def device_name(device: torch.device) -> str:
    """The card, or the CPU and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
