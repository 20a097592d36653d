"""What is shown: a stream that fails costs no more than its words, and no string can steer the terminal."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


def printable(text: object) -> str:
    """The text with escape codes and all else that nobody can see spelled out: names of files hold what they like."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def tell(text: object, error: bool = False) -> None:
    """Print on stdout or stderr, at once."""
    print(printable(text), file=sys.stderr if error else sys.stdout, flush=True)


def warn(text: object) -> None:
    """One line that must not be missed, on stderr; stdout may be JSON."""
    tell(f"warning: {text}", error=True)


def on_one_line(text: object) -> str:
    """Names of files may hold line breaks."""
    return str(text).replace("\n", "\\n")


def complain(text: object) -> None:
    """One line of an error on stderr, whatever is in it."""
    tell("error: " + on_one_line(text), error=True)


def console(**options: Any) -> Any:
    """A console of rich's that is safe in both ways."""
    from rich.console import Console

    class Safe(Console):
        """Its own codes for colours and cursors are no text and pass."""

        def render(self, *args: Any, **kwargs: Any) -> Any:
            for segment in super().render(*args, **kwargs):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    stream: Any = sys.stderr if options.pop("stderr", False) else sys.stdout
    return Safe(file=stream if isinstance(stream, Stream) else Stream(stream), **options)  # type: ignore[arg-type]


class Stream:
    """A text stream that may be closed, full or read by nobody: its words are lost then, and ``lost`` says why."""

    def __init__(self, stream: Any):
        self._stream = stream if stream is not None else open(os.devnull, "w")  # noqa: SIM115
        self.lost: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._tolerant():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._tolerant():
            self._stream.flush()

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:  # only slow
            pass
        except (OSError, ValueError) as error:
            self.lost = self.lost or error
            with contextlib.suppress(OSError, ValueError):  # what is left in the buffer is written there at exit
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


@contextlib.contextmanager
def guarded() -> Iterator[Stream]:
    """Make stdout and stderr streams of that kind, whatever they were started as; gives that of stdout."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a closed descriptor would be given to the next file that is opened, and be written to by whoever prints
    os.close(number)
    before = sys.stdout, sys.stderr
    for stream in before:
        with contextlib.suppress(AttributeError, OSError):  # none, not a text file, one that cannot be changed any more
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # for ASCII and odd names
    streams: Any = Stream(sys.stdout), Stream(sys.stderr)
    sys.stdout, sys.stderr = streams
    try:
        yield streams[0]
    finally:
        for stream in streams:
            stream.flush()
        sys.stdout, sys.stderr = before
