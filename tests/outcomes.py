"""How a command ended, what it said, and what a run leaves behind."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    def refused(self, code: int = 2) -> str:
        """The message of an error a user can understand: one line, no traceback, this exit code."""
        assert self.code == code, f"exit {self.code}\n{self.out}\n{self.err}"
        return message_of(self.err)


def errors_of(stderr: str) -> list[str]:
    """The error lines of our own among those of torchrun."""
    return [line.removeprefix("error: ") for line in stderr.splitlines() if line.startswith("error: ")]


def message_of(stderr: str) -> str:
    """The one error line of a command; a traceback beside it is a fault."""
    assert "Traceback" not in stderr
    (message,) = errors_of(stderr)
    return message


def remains(folder: Path) -> dict[str, object]:
    """All that must not depend on how a run was brought to its end."""
    record = json.loads((folder / "record.json").read_text())
    last = sorted((folder / "checkpoints").glob("step-*.pt"))[-1]
    return {
        "weights": (folder / "weights.safetensors").read_bytes(),
        "metrics": (folder / "metrics.jsonl").read_bytes(),
        "checkpoint": (last.name, last.read_bytes()),
        "final": record["final"],
        "step sizes": record["step_sizes"],
    }
