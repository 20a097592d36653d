"""One of several processes that train together; run by test_engine_distributed.py: one_rank.py CASE FOLDER."""

import math
import sys
from pathlib import Path

import torch
from tiny_training import network, training
from torch import nn

from timestepper.engine import distributed
from timestepper.engine.loop import Interrupted
from timestepper.engine.signals import Signals
from timestepper.errors import DiskFullError, TimestepperError


class NaNOnce(nn.Module):
    """One rank's loss is not a number at the fourth update."""

    def __init__(self, rank):
        super().__init__()
        self.inner, self.rank, self.calls = network(norm=False, dropout=0.0), rank, 0

    def forward(self, images):
        self.calls += self.training
        poison = math.nan if self.rank == 1 and self.calls == 4 else 1.0
        return self.inner(images) * poison


def main(case, folder):
    group = distributed.start(torch.device("cpu"), 60)
    try:
        signals = Signals()
        model = NaNOnce(group.rank) if case == "nan" else network(norm=False, dropout=0.0)
        run = training(
            folder if group.rank == 0 else None, model=model, group=group, signals=signals, checkpoint_steps=2
        )
        if case == "full" and group.rank == 0:

            def no_space(step, state):
                raise DiskFullError(f"No space left at step {step}")

            run.journal.save = no_space
        for step in run.steps():
            if case == "signal" and group.rank == 1 and step == 3:
                signals.stop = 15
            if case == "evaluation" and group.rank == 1 and step == 5:
                signals.stop = 15
        print(f"rank {group.rank} finished at {run.step}")
    except Interrupted as stop:
        print(f"rank {group.rank} stopped by {stop.signal} at {stop.step}")
    except TimestepperError as error:
        print(f"rank {group.rank} error {error}")
        raise SystemExit(error.exit_code) from None
    finally:
        distributed.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
