"""What a person sees while a run goes on: a live line in a terminal, one plain line per epoch elsewhere."""

import time
from collections.abc import Iterable, Mapping

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from timestepper import terminal


class Display:
    """Shows a run. ``quiet`` shows nothing at all (every process but the first)."""

    def __init__(self, quiet: bool = False):
        self._quiet = quiet
        self._console = terminal.console(highlight=False)
        self._live: _Live | None = None
        self._extra = ""
        self._speed = _Speed()

    def start(self, step: int, steps: int) -> None:
        """Begin at a step of a run of so many."""
        self._speed = _Speed()
        if self._quiet or not self._console.is_terminal:
            return
        self._live = _Live(self._console)
        self._live.add_task("", total=steps, completed=step, epoch="-")
        self._live.figures = self._extra
        self._live.start()

    def step(self, step: int, epoch: int, loss: float, accuracy: float, images: float) -> None:
        """One update has come in."""
        self._speed.add(images)
        if self._live is not None:
            speed = f"{self._speed.value:,.0f} images/s"
            self._live.figures = f"loss {loss:.3f}  accuracy {accuracy:.1%}  {speed}  {self._extra}"
            self._live.update(self._live.task_ids[0], completed=step, epoch=epoch)

    def columns(self, columns: Mapping[str, float]) -> None:
        """Figures to show beside loss and speed until the next ones come."""
        self._extra = "  ".join(f"{name} {value:.3f}" for name, value in columns.items())

    def epoch(self, epoch: int, epochs: int, figures: Mapping[str, float], columns: Mapping[str, float]) -> None:
        """An epoch has ended; ``columns`` stay visible during the next."""
        self.columns(columns)
        text = "  ".join(
            f"{name} {value:.2%}" if name.endswith("error") else f"{name} {value:.4f}"
            for name, value in figures.items()
        )
        speed, self._speed = f"{self._speed.value:,.0f} images/s", _Speed()
        self.tell("  ".join(part for part in (f"epoch {epoch}/{epochs}", text, self._extra, speed) if part))

    def tell(self, line: str) -> None:
        """One line, above the live one where there is one."""
        if not self._quiet:
            self._console.print(line, markup=False, soft_wrap=True)

    def warn(self, line: str) -> None:
        """One line that must not be missed, on stderr."""
        if not self._quiet:
            terminal.warn(line)

    def stop(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Live(Progress):
    """A line with bar and time left, below it the figures: these wrap where a narrow terminal would cut them off."""

    figures = ""

    def __init__(self, console: Console):
        super().__init__(
            TextColumn("epoch {task.fields[epoch]}  step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(),
            console=console,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.figures)


class _Speed:
    """Images per second since an epoch began; the first one has to load, compile and warm up too."""

    def __init__(self) -> None:
        self.value = self._images = 0.0
        self._since = time.monotonic()

    def add(self, images: float) -> None:
        self._images += images
        self.value = self._images / max(time.monotonic() - self._since, 1e-9)
