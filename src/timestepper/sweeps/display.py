"""What a person sees of a sweep: a live table in a terminal, one plain line per epoch and run elsewhere."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from timestepper import terminal
from timestepper.engine.progress import Display
from timestepper.runs.run import RUNNING, Run


class RunDisplay(Display):
    """One row. A step only notes its numbers; the table is drawn twice a second, whatever the number of runs."""

    def __init__(self, run: Run, board: "Board"):
        super().__init__()
        self._run, self._board = run, board
        self._step = self._first = self._steps = 0
        self._epoch = self._loss = self._accuracy = 0.0
        self._test_error: float | None = None
        self._since = time.monotonic()

    def start(self, step: int, steps: int) -> None:
        self._step = self._first = step
        self._steps, self._since = steps, time.monotonic()

    def step(self, step: int, epoch: int, loss: float, accuracy: float, images: float) -> None:
        self._speed.add(images)
        self._step, self._epoch, self._loss, self._accuracy = step, epoch, loss, accuracy

    def epoch(self, epoch: int, epochs: int, figures: Mapping[str, float], columns: Mapping[str, float]) -> None:
        self._test_error = figures.get("test error", self._test_error)
        if not self._board.live:
            super().epoch(epoch, epochs, figures, columns)

    def tell(self, line: str) -> None:
        self._board.tell(f"{self._run.label}: {line}")

    def warn(self, line: str) -> None:
        terminal.warn(f"{self._run.label}: {line}")

    def stop(self) -> None:
        """The row stays."""

    def row(self) -> list[str]:
        """The cells of :data:`COLUMNS`."""
        running = self._run.state == RUNNING and self._steps > 0
        left = "-"
        if running and self._step > self._first:
            seconds = (time.monotonic() - self._since) * (self._steps - self._step) / (self._step - self._first)
            left = f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02d}:{int(seconds) % 60:02d}"
        return [
            self._run.label,
            self._run.state,
            f"{self._epoch:.0f}" if self._epoch else "-",
            f"{self._step}/{self._steps}" if self._steps else "-",
            f"{self._loss:.4g}" if self._epoch else "-",
            f"{self._accuracy:.1%}" if self._epoch else "-",
            "-" if self._test_error is None else f"{self._test_error:.2%}",
            f"{self._speed.value:,.0f}" if running else "-",
            left,
        ]


COLUMNS = ("run", "state", "epoch", "step", "loss", "accuracy", "test error", "images/s", "left")


class Board:
    """All rows. Use as a context."""

    def __init__(self, plain: bool = False):
        self._console = terminal.console(soft_wrap=True, highlight=False)
        self.live = self._console.is_terminal and not plain
        self._rows: list[RunDisplay] = []
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=2)

    def add(self, run: Run) -> RunDisplay:
        """A row for one run."""
        self._rows.append(RunDisplay(run, self))
        return self._rows[-1]

    def tell(self, line: str) -> None:
        """One line, above the table where there is one."""
        self._console.print(line, markup=False)

    def __enter__(self) -> "Board":
        if self.live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.live:
            self._live.stop()

    def _table(self) -> Table:
        table = Table(*COLUMNS)
        for row in self._rows:
            table.add_row(*map(escape, row.row()))
        return table


def summary_lines(runs: Sequence[Run]) -> list[str]:
    """What a person reads at the end."""
    width = max((len(run.label) for run in runs), default=0)
    lines = [f"{run.label:{width}s}  {run.state:16s}  {run.message}" for run in runs]
    counts = Counter(run.state for run in runs)
    return [*lines, f"{len(runs)} runs: " + ", ".join(f"{count} {state}" for state, count in counts.items())]
