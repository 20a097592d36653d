"""The command line: parse, one call, print. torch is imported only when a command runs.

One file per command, beside two helpers: ``gather`` for the commands that print tables of records or write the page,
``stability_tables`` for ``stability``.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer

import timestepper
from timestepper import torchrun
from timestepper.errors import TimestepperError

app = typer.Typer(
    name="timestepper",
    help="Residual networks that learn their own time steps. With --debug, an error shows its traceback.",
    add_completion=False,
    pretty_exceptions_enable=False,
)

_UsageError: Any = typer.BadParameter.__mro__[
    1
]  # click's own; typer brings click with it or imports it, version by version

# Each module holds a function of its own name, which is the command.
COMMANDS = (
    "demo",
    "inspect",
    "train",
    "sweep",
    "evaluate",
    "fold",
    "list",
    "check_data",
    "verify",
    "bench",
    "stability",
    "reproduce",
    "report",
)

for _name in COMMANDS:
    app.command(_name.replace("_", "-"))(getattr(importlib.import_module(f"timestepper.cli.{_name}"), _name))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"timestepper {timestepper.__version__}")
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
    try:
        _run()
    except SystemExit as end:
        if not torchrun.launched():
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def _run() -> None:
    """A user's mistake is one line on stderr, a traceback only with --debug."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"] or ["--help"]
    try:
        # Not standalone, the exit code that a command raises comes back as a value, and a wrong command line comes out.
        sys.exit(app(arguments, prog_name="timestepper", standalone_mode=False) or 0)
    except _UsageError as error:
        where = error.ctx.command_path if error.ctx else "timestepper"
        print(f"error: {error.format_message().rstrip('.')}; see {where} --help", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except TimestepperError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
