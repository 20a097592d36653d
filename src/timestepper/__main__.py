"""The command ``timestepper``, also as ``python -m timestepper``: says what to install where typer is missing."""

import sys

from timestepper.errors import missing_package


def main() -> None:
    """Run a command."""
    try:
        from timestepper.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (advice := missing_package(error)) is None:
            raise
        sys.exit(f"error: {advice}")
    command()


if __name__ == "__main__":
    main()
