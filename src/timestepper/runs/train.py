"""The part of one process in a run: meet the others, train from where the folder stands, finish."""

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from timestepper import records, tensors, torchrun
from timestepper.engine import distributed
from timestepper.engine.checkpoint import check_fit
from timestepper.engine.distributed import Group
from timestepper.engine.journal import FolderJournal, Journal
from timestepper.engine.loop import Interrupted, Training
from timestepper.engine.metrics import read_lines
from timestepper.engine.optimiser import momentum_of
from timestepper.engine.progress import Display
from timestepper.engine.rundir import TIMING, RunDirectory
from timestepper.engine.runtime import choose_device, device_name
from timestepper.engine.schedule import Schedule
from timestepper.engine.signals import Signals
from timestepper.errors import (
    CheckpointError,
    DistributedError,
    DivergedError,
    LoaderError,
    RecipeError,
    TimestepperError,
    in_words,
)
from timestepper.recipe.load import as_dict, dump, import_controller
from timestepper.runs import agreement, build, finish
from timestepper.runs.load import restore
from timestepper.runs.observe import NetworkObserver
from timestepper.runs.resume import reconcile
from timestepper.runs.run import Run


class Process:
    """One process in a run. ``folder`` is None in every process but the first.

    ``display`` and ``data`` are its own, or shared with other runs; ``final`` are the figures of the finished run.
    """

    def __init__(
        self,
        run: Run,
        folder: RunDirectory | None,
        signals: Signals,
        *,
        display: Display | None = None,
        data: Any = None,
        dist_timeout: float = 600.0,
    ):
        import_controller(run.recipe, run.path)  # a job of a cluster is handed the recipe and has not loaded it
        self.run, self.folder, self.signals, self.data = run, folder, signals, data
        self.display = display or Display(quiet=folder is None)
        self.device = choose_device(run.recipe.runtime.device, torchrun.local_rank())
        self.group = Group(device=self.device)
        self.runtime = build.runtime(run.recipe, self.device, self.display.tell)
        self.training: Training | None = None
        self.final: dict[str, Any] = {}
        self._journal: FolderJournal | None = None
        self._changed = ""
        self._dist_timeout = dist_timeout

    @property
    def step(self) -> int:
        """How far the run is."""
        return self.training.step if self.training else 0

    @property
    def idle(self) -> bool:
        """Whether the next step would only wait for the device."""
        waiting = self.training.waiting if self.training else None
        return waiting is not None and not waiting.query()

    def steps(self) -> Generator[object]:
        """The whole run, from where its folder stands; yields when it is ready and after every step."""
        with self._told():
            try:
                self._join()
                self.training = self._resume()
                yield self
                yield from self.training.steps()
            except RuntimeError as error:
                if (lost := distributed.explain(error, self.group, self.step)) is not None:
                    raise lost from error
                raise
            finally:
                distributed.stop()
            if self.folder is not None:
                self.final = self._finish(self.folder.path)

    def _join(self) -> None:
        """Meet the other processes; open the data."""
        recipe = self.run.recipe
        if recipe.runtime.sync_bn and self.device.type != "cuda":  # what GPUs have trained is evaluated anywhere
            raise RecipeError("runtime.sync_bn needs GPUs, and this run is on the CPU; set runtime.sync_bn=false")
        if (advice := distributed.advice()) is not None:
            self.display.tell(advice)
        self.group = distributed.start(self.device, self._dist_timeout)
        if self.group.active:
            self.signals.install()
            agreement.check_recipe(self.run, self.group)
        self.data = self.data or build.dataset(recipe)
        if self.group.active:
            agreement.check_images(self.data, self.group)

    def _resume(self) -> Training:
        """The run, where its folder stands."""
        recipe, images, parts = self.run.recipe, self.data.train, (self.runtime, self.group)
        batches = build.train_loader(recipe, images, *parts)
        schedule = build.schedule(recipe, batches.steps)
        model = self.runtime.place(build.network(recipe, images, recipe.runtime.sync_bn and self.group.active))
        optimiser = build.optimiser(recipe, model)
        build.check_images(recipe, model, batches)
        observer = NetworkObserver(model, batches.input_shape, recipe.run.monitor)
        state = self.group.agree(lambda: self._open_folder(schedule, batches.samples, model, optimiser))
        training = Training(
            model,
            optimiser,
            schedule,
            batches,
            build.test_loader(recipe, self.data.test, *parts),
            plan=build.plan(recipe),
            runtime=self.runtime,
            journal=self._journal or Journal(),
            group=self.group,
            signals=self.signals,
            observer=observer,
        )
        training.load(state)
        if self.folder is not None:
            self.display.columns(observer.steps().columns)
        return training

    def _open_folder(
        self, schedule: Schedule, samples: int, model: nn.Module, optimiser: torch.optim.Optimizer
    ) -> dict[str, Any] | None:
        """The state to go on from; status.json says "running" only once nothing was refused."""
        assert self.folder is not None
        run, where = self.run, self.folder.path
        here = {"commit": records.commit(), "device": device_name(self.device)}
        journal = FolderJournal(
            self.folder,
            identity=build.identity(run.recipe, self.data.train),
            recipe=dump(run.recipe),
            steps=schedule.steps,
            epochs=schedule.epochs,
            display=self.display,
            tensorboard=run.recipe.run.tensorboard,
            stamp=lambda: {**here, "sharing": run.sharing},
            images=self.data.facts,
        )
        self.signals.leave = False  # from here on the folder is written to
        state = journal.find()
        if state is not None:
            earlier_step = state["step"]
            state = reconcile(state, run, self.data.facts, samples, self.group.world, self.display.tell)
            check_fit(where, state, model, momentum_of(optimiser))
            self._changed = state.get("changed", "")
            if state["step"] != earlier_step:
                state = journal.recount(state, earlier_step)
            self.display.tell(f"going on at step {state['step']} of {schedule.steps} in {where}")
        journal.open(state)
        self._journal = journal
        return state

    def _finish(self, run: Path) -> dict[str, Any]:
        """Evaluate what was saved, from the file, on a fresh network; export it; write the record."""
        assert self._journal is not None
        assert self.folder is not None
        self.folder.check()
        trained = restore(run, self.run.recipe, self.data, self.display.tell)
        if trained.state["step"] != self.step:
            raise CheckpointError(
                f"{trained.path} is of step {trained.state['step']}, and this run has ended at step {self.step}: no "
                "record is written; the same command goes on from there"
            )
        tensors.write_tensors(trained.model.state_dict(), run / finish.WEIGHTS)
        epochs = finish.epochs_of(run)
        final = {"train": epochs[-1]["train"], "best": trained.state["best"]}
        final |= finish.evaluate(trained, self.runtime, self._poll)
        made = records.make(
            as_dict(self.run.recipe),
            times=list(read_lines(run / TIMING)),
            epochs=epochs,
            final=final,
            step_sizes=finish.final_step_sizes(trained.model),
            **self._facts(),
        )
        self.folder.check()  # the evaluation may have taken long
        records.write(made, run)
        self.run.publish()
        more = {"images": self.data.facts} if self.data.facts else {}
        self._journal.status("finished", self.step, test_error=final["test"]["error"], **more)
        return final

    def _facts(self) -> dict[str, Any]:
        """What every result says of its run beside the recipe."""
        told = {"name": self.run.name, "data_sha256": self.data.sha256}
        told |= {"changed": self._changed} if self._changed else {}
        return told | {"device": device_name(self.device), "world": self.group.world}

    def _poll(self) -> None:
        if self.signals.stop:
            raise Interrupted(self.signals.stop, self.step)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Write into status.json how it ended, once it has begun; a refused start leaves no trace."""
        try:
            yield
        except GeneratorExit:  # nobody asks for the next step
            raise
        except Interrupted as stop:
            self._status("interrupted", signal=stop.signal)
            raise
        except BaseException as error:
            # Whether the same command would only fail again: it does after a divergence, not after a lost process.
            ours = isinstance(error, TimestepperError)
            hopeless = ours and not isinstance(error, DistributedError | LoaderError)
            told = f"{type(error).__name__}: {error}" if ours else in_words(error)
            self._status("failed", error=told, hopeless=hopeless)
            if isinstance(error, DivergedError):
                self._publish_divergence(error)
            raise
        finally:
            self.display.stop()
            if self._journal is not None:
                with contextlib.suppress(Exception):
                    self._journal.close()

    def _publish_divergence(self, error: DivergedError) -> None:
        """Among the results, so that nobody takes those that ended for all."""
        run = self.run
        if self.folder is not None and run.results is not None:
            try:
                facts = self._facts()
                records.publish_diverged(as_dict(run.recipe), run.results, **facts, step=error.step, error=str(error))
            except (OSError, TimestepperError) as other:  # what went wrong first is what the run ends with
                self.display.tell(f"could not write down in {run.results} that this run diverged: {in_words(other)}")

    def _status(self, state: str, **fields: Any) -> None:
        if self._journal is not None:
            with contextlib.suppress(Exception):
                self._journal.status(state, self.step, **fields)
