"""The command line: parse, one call, print. torch is imported only when a command runs.

One file per command, or for few that belong together, beside helpers: ``gather`` for the commands that print tables of
records or write the page, ``stability_subject`` and ``stability_tables`` for ``stability``.
"""

import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import timestepper
from timestepper import terminal, torchrun
from timestepper.errors import Leave, TimestepperError, first_line, in_words, missing_package
from timestepper.terminal import complain, tell

app = typer.Typer(
    name="timestepper",
    help="Residual networks that learn their own time steps. With --debug, an error shows its traceback.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

# click's own: typer brings click with it or imports it, version by version
_UsageError: Any = typer.BadParameter.__mro__[1]

_WRITE_FILES = {"train", "sweep", "reproduce", "demo", "fold", "report"}  # what these print is beside the point

COMMANDS = {  # and where their functions are
    "demo": "demo.demo",
    "inspect": "inspect.inspect",
    "train": "runs.train",
    "sweep": "sweep.sweep",
    "evaluate": "runs.evaluate",
    "fold": "runs.fold",
    "list": "runs.list_runs",
    "check-data": "checks.check_data",
    "verify": "checks.verify",
    "bench": "bench.bench",
    "stability": "stability.stability",
    "reproduce": "reproduce.reproduce",
    "report": "report.report",
}

for _name, _place in COMMANDS.items():
    _module, _function = _place.split(".")
    app.command(_name)(getattr(importlib.import_module(f"timestepper.cli.{_module}"), _function))


def _print_version(wanted: bool) -> None:
    if wanted:
        tell(f"timestepper {timestepper.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """What may stand before a command."""


def main() -> None:
    """Run a command. A process of torchrun then leaves without the interpreter's own end.

    torch's DistributedDataParallel keeps the threads of gloo alive for ever; when one of them is still busy while the
    interpreter ends, the process aborts after all its work was done (seen once in 17 runs).
    """
    debug = "--debug" in sys.argv
    if not debug:
        threading.excepthook = _quieter
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    with terminal.guarded() as out:
        code = _run(arguments, debug)
        out.flush()
        if out.lost and not isinstance(out.lost, BrokenPipeError) and not code and arguments[0] not in _WRITE_FILES:
            complain(f"the output could not be written: {first_line(out.lost)}")
            code = 1
    if torchrun.launched():
        os._exit(code)
    sys.exit(code)


def _quieter(end: threading.ExceptHookArgs) -> None:
    """Show nothing of a thread that could not write: TensorBoard's tells its owner, and so do we."""
    if not isinstance(end.exc_value, OSError):
        threading.__excepthook__(end)


def _run(arguments: Sequence[str], debug: bool) -> int:
    """The exit code. An error is one line on stderr, a traceback only with --debug."""
    try:
        os.getcwd()
    except FileNotFoundError:  # torch would end the process with words of its own
        complain("the folder that you are in was removed; cd somewhere else")
        return 2
    try:
        # Not standalone, the exit code that a command raises comes back as a value, and a wrong command line comes out.
        return app(arguments, prog_name="timestepper", standalone_mode=False) or 0
    except Leave as end:
        return int(end.code or 0)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except _UsageError as error:
        where = error.ctx.command_path if error.ctx else "timestepper"
        said = error.format_message().replace("Value error, ", "").rstrip(".")  # pydantic's, that typer passes on
        complain(f"{said}; see {where} --help")
        return error.exit_code
    except BaseException as error:  # foreign code can raise anything
        if debug:
            traceback.print_exc()
        if isinstance(error, SystemExit) and isinstance(error.__context__, OSError):  # typer makes it of a broken pipe
            error = error.__context__
        if isinstance(error, TimestepperError):
            complain(error)
            return error.exit_code
        advice = missing_package(error)
        complain(advice or f"{in_words(error)}{'' if debug else '; --debug shows where it comes from'}")
        return 2 if advice else 1
