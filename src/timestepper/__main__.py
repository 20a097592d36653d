"""The command ``timestepper``, also as ``python -m timestepper``: says what to install where typer is missing."""

import sys

from timestepper.errors import TimestepperError, missing_package
from timestepper.terminal import complain


def main() -> None:
    """Run a command."""
    try:
        from timestepper.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        complain(advice)
        sys.exit(TimestepperError.exit_code)
    command()


if __name__ == "__main__":
    main()
