"""Train, resume and finish a run."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timestepper import records, saving, torchrun
from timestepper.engine import distributed
from timestepper.engine.checkpoint import check_fit
from timestepper.engine.distributed import Group
from timestepper.engine.journal import FolderJournal, Journal
from timestepper.engine.loop import Interrupted, Training
from timestepper.engine.metrics import read_lines
from timestepper.engine.optimiser import momentum_of
from timestepper.engine.progress import Display
from timestepper.engine.rundir import TIMING, RunDirectory
from timestepper.engine.runtime import choose_device
from timestepper.engine.schedule import Schedule
from timestepper.engine.signals import Signals
from timestepper.errors import DistributedError, LoaderError, TimestepperError
from timestepper.experiment import build, finish
from timestepper.experiment.load import as_dict, dump
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
    display: Display | None = None  # None: one of its own
    data: Any = None  # an open data set, to share one copy between runs; None: opened for this run


def train(request: Request) -> dict[str, Any]:
    """Train to the end, from where the run directory stands; the final figures (empty but in the first process)."""
    session = Session(request)
    with session.told():
        try:
            session.join()
            session.training().run()
        except RuntimeError as error:
            if (lost := distributed.explain(error, session.group, session.step)) is not None:
                raise lost from error
            raise
        finally:
            distributed.stop()
        return {} if request.folder is None else session.finish()


class Session:
    """One process's part in a run."""

    def __init__(self, request: Request):
        self.request, self.recipe = request, request.recipe
        self.device = choose_device(self.recipe.runtime.device, torchrun.local_rank())
        self.display = request.display or Display(quiet=request.folder is None)
        self.group = Group(device=self.device)
        self._training: Training | None = None
        self._journal: FolderJournal | None = None

    @property
    def step(self) -> int:
        """How far the run is."""
        return self._training.step if self._training else 0

    def join(self) -> None:
        """Meet the other processes; open the data."""
        build.check_sync_bn(self.recipe, self.device)
        if (advice := distributed.advice()) is not None:
            self.display.say(advice)
        self.group = distributed.start(self.device, self.request.dist_timeout)
        if self.group.active:
            self.request.signals.install()
        self.data = self.request.data or build.dataset(self.recipe)
        self.runtime = build.runtime(self.recipe, self.device, self.display.say)

    def training(self) -> Training:
        """The run, where its folder stands."""
        recipe, images, parts = self.recipe, self.data.train, (self.runtime, self.group)
        batches = build.train_loader(recipe, images, *parts)
        schedule = build.schedule(recipe, batches.steps)
        model = self.runtime.place(build.network(recipe, images, recipe.runtime.sync_bn and self.group.active))
        optimiser = build.optimiser(recipe, model)
        memory: list[torch.Tensor] = []
        observe = build.observe(recipe, model, batches.input_shape, memory)
        state: dict[str, Any] | None = None

        def open_folder() -> None:
            nonlocal state
            state = self._open_folder(schedule, batches.samples, model, optimiser)

        self.group.agree(open_folder)
        self._training = Training(
            model,
            optimiser,
            schedule,
            batches,
            build.test_loader(recipe, self.data.test, *parts),
            plan=build.plan(recipe),
            runtime=self.runtime,
            journal=self._journal or Journal(),
            group=self.group,
            signals=self.request.signals,
            observe=observe,
            memory=memory,
        )
        self._training.load(state)
        if self.request.folder is not None:
            self.display.columns(build.step_columns(recipe, model))
        return self._training

    def _open_folder(
        self, schedule: Schedule, samples: int, model: nn.Module, optimiser: torch.optim.Optimizer
    ) -> dict[str, Any] | None:
        """The state to go on from; status.json says "running" only once nothing was refused."""
        assert self.request.folder is not None
        journal = FolderJournal(
            self.request.folder,
            identity=build.identity(self.recipe, self.data.train),
            recipe=dump(self.recipe),
            steps=schedule.steps,
            epochs=schedule.epochs,
            display=self.display,
            tensorboard=self.recipe.run.tensorboard,
            stamp={"commit": records.commit()},
        )
        state = journal.find()
        if state is not None:
            earlier_step = state["step"]
            state = reconcile(
                state,
                self.recipe,
                samples=samples,
                world=self.group.world,
                override=self.request.override,
                where=str(self.request.folder.path),
                say=self.display.say,
            )
            check_fit(self.request.folder.path, state, model, momentum_of(optimiser))
            if state["step"] != earlier_step:
                state = journal.recount(state, earlier_step)
            self.display.say(f"going on at step {state['step']} of {schedule.steps} in {self.request.folder.path}")
        journal.open(state)
        self._journal = journal
        return state

    def finish(self) -> dict[str, Any]:
        """Evaluate what was saved, from the file, on a fresh network; export it; write the record."""
        assert self.request.folder is not None
        assert self._journal is not None
        run = self.request.folder.path
        trained = finish.restore(run, self.recipe, self.data, self.display.say)
        saving.write_tensors(trained.model.state_dict(), run / finish.WEIGHTS)
        epochs = finish.epochs_of(run)
        final = {"train": epochs[-1]["train"], "best": trained.state["best"]}
        final |= finish.evaluate(trained, self.runtime, self._poll)
        made = records.make(
            as_dict(self.recipe),
            name=self.request.name,
            times=list(read_lines(run / TIMING)),
            data_sha256=self.data.sha256,
            device=device_name(self.device),
            epochs=epochs,
            final=final,
            step_sizes=finish.final_step_sizes(trained.model),
            world=self.group.world,
        )
        records.write(made, run)
        if self.request.results is not None:
            records.publish(run, self.request.results)
        self._journal.status("finished", self.step, test_error=final["test"]["error"])
        return final

    def _poll(self) -> None:
        if self.request.signals.stop:
            raise Interrupted(self.request.signals.stop, self.step)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Write into status.json how it ended, once it has begun; a refused start leaves no trace."""
        try:
            yield
        except Interrupted as stop:
            self._status("interrupted", signal=stop.signal)
            raise
        except BaseException as error:
            # Whether the same command would only fail again: it does after a divergence, not after a lost process.
            hopeless = isinstance(error, TimestepperError) and not isinstance(error, DistributedError | LoaderError)
            self._status("failed", error=f"{type(error).__name__}: {error}", hopeless=hopeless)
            raise
        finally:
            self.display.stop()
            if self._journal is not None:
                with contextlib.suppress(Exception):
                    self._journal.close()

    def _status(self, state: str, **fields: Any) -> None:
        if self._journal is not None:
            with contextlib.suppress(Exception):
                self._journal.status(state, self.step, **fields)


def device_name(device: torch.device) -> str:
    """The card, or the CPU and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
