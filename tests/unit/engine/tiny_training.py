"""A training small enough for a test: random images, batch norm and dropout, two epochs of five steps."""

from pathlib import Path

import torch
from torch import nn

from timestepper.engine import optimiser
from timestepper.engine.distributed import Group
from timestepper.engine.journal import FolderJournal, Journal
from timestepper.engine.loop import Training, TrainingPlan
from timestepper.engine.progress import Display
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.runtime import Runtime
from timestepper.engine.schedule import Schedule

CLASSES, STEPS, EPOCHS, BATCH = 6, 5, 2, 8
_RUNTIME = ("cuda_graph", "compile", "precision", "channels_last", "say")
IDENTITY = {"model": "tiny", "classes": CLASSES}


class TinyBatches:
    """Follows the loader's interface: batches are a function of (epoch, step), shared equally by the ranks."""

    def __init__(self, *, training=True, rank=0, world=1, device="cpu"):
        self.training, self.rank, self.world, self.device = training, rank, world, device
        self.steps = STEPS if training else 2
        self.samples = self.steps * BATCH if training else 13

    def epoch(self, epoch, first_step=0):
        for step in range(first_step, self.steps):
            source = torch.Generator().manual_seed(1000 * epoch + step + (0 if self.training else 77))
            labels = torch.randint(CLASSES, (BATCH,), generator=source)
            images = torch.randn(BATCH, 1, 4, 4, generator=source) + labels[:, None, None, None]
            if not self.training:
                labels[self.samples - step * BATCH :] = -1
            share = [batch.chunk(self.world)[self.rank].to(self.device) for batch in (images, labels)]
            yield share[0], share[1]


def network(norm=True, dropout=0.2):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), *([nn.BatchNorm2d(8)] if norm else []), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(32, CLASSES))


def training(folder=None, *, model=None, group=None, signals=None, device="cpu", epochs=EPOCHS, lr=0.1, **options):
    """A run in a folder (or without one), where it stands; ``options`` go into the plan and the runtime."""
    group = group or Group()
    runtime_options = {name: options.pop(name) for name in _RUNTIME if name in options}
    observer = options.pop("observer", None)
    batches, kind = options.pop("batches", TinyBatches), options.pop("kind", "sgd")
    schedule = Schedule(lr, epochs, STEPS)
    model = (model or network()).to(device)
    journal, state = Journal(), None
    if folder is not None:
        journal = FolderJournal(
            RunDirectory(Path(folder)),
            identity=IDENTITY,
            recipe="",
            steps=schedule.steps,
            epochs=epochs,
            display=Display(quiet=True),
            tensorboard=options.pop("tensorboard", False),
        )
        state = journal.find()
        journal.open(state)
    share = {"rank": group.rank, "world": group.world, "device": device}
    run = Training(
        model,
        optimiser.build([{"params": model.parameters()}], kind=kind, lr=lr, weight_decay=1e-4),
        schedule,
        batches(**share),
        TinyBatches(training=False, **share),
        plan=TrainingPlan(**{"log_steps": 1, **options}),
        runtime=Runtime(torch.device(device), **runtime_options),
        journal=journal,
        group=group,
        signals=signals,
        observer=observer,
    )
    run.load(state)
    return run


def close(run):
    """What the end of the process would do."""
    run.journal.close()
    run.journal.folder.close()


def trained(*arguments, **options):
    """A run that has come to its end."""
    run = training(*arguments, **options)
    run.run()
    if arguments:
        close(run)
    return run


def vanished(step, *arguments, **options):
    """A run whose process is gone after so many updates."""
    run = training(*arguments, **options)
    for done in run.steps():
        if done == step:
            break
    close(run)


def end_state(run):
    """What a run has come to: weights, statistics, momentum."""
    return [*run.model.state_dict().values(), *run.state()["momentum"]]
