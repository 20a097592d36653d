"""What the stability command prints."""

import json
import math
from collections.abc import Iterator
from statistics import mean, pstdev
from typing import Any

from timestepper.cli import gather
from timestepper.report.tables import Table
from timestepper.terminal import tell


def as_json(found: dict[str, Any]) -> str:
    return json.dumps(_finite(found), indent=2)


def _finite(value: Any) -> Any:
    """A value with null for NaN and infinity, which JSON has no words for."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show_solutions(found: dict[str, Any]) -> None:
    """Print a line for each solution of Figure 1."""
    for name, row in found.items():
        tell(f"{name:18s} {row['steps']:4d} steps, {row['rejected']} rejected, largest error {row['error']:.3g}")


def show(found: dict[str, Any]) -> None:
    """Print all that was found."""
    if "blocks" in found:
        gather.show([block_table(found)])
        tell("\n".join(_summary(found)))
    gather.show([_score_table(name, found[name]) for name in ("noise", "attacks", "corruptions") if name in found])


COLUMNS = {
    "bound": lambda b: _exp(b.get("log")),
    "no steps": lambda b: _exp(b.get("log_without_steps")),
    "worst": lambda b: _number(b["growth_power"]),
    "adversarial": lambda b: _number(b["growth_adversarial"]),
    "random": lambda b: _number(b["growth_random"]),
    "max|1+hλ|": lambda b: _radius(b),
    "branch share": lambda b: _number(b["branch_share"]),
    "Eq. 8 share": lambda b: _number(b["residual_share"]),
    "step size": lambda b: _number(b["step_size"]["mean"] if "step_size" in b else None),
}


def block_table(found: dict[str, Any]) -> Table:
    """One line per block."""
    title = f"{found['name']}: growth and gradients of every block, inputs {'x'.join(map(str, found['inputs']))}"
    rows = [(block["path"], *(column(block) for column in COLUMNS.values())) for block in found["blocks"]]
    return Table("blocks", title, ("block", *COLUMNS), rows)


def _summary(found: dict[str, Any]) -> Iterator[str]:
    for name, label in (("bound", "bound"), ("bound_without_steps", "without steps")):
        if name in found:
            bound = found[name]
            parts = ", ".join(f"{stage} {part:.2f}" for stage, part in bound["stages"].items())
            yield (
                f"{label:14s} log {bound['log']:.2f} ({parts}); certainly below {bound['log_certified']:.2f}; "
                f"reshaped kernels would say {bound['log_reshaped']:.2f}"
            )
    grown = ", ".join(f"{kind} {growth['end_to_end']:.3g}" for kind, growth in found["growth"].items())
    yield f"{'measured':14s} {grown} (times, first block's input to last block's output)"
    if "evolution_time" in found:
        times = ", ".join(f"{stage} {time:.3f}" for stage, time in found["evolution_time"].items())
        yield f"{'evolution':14s} T = {sum(found['evolution_time'].values()):.3f} ({times})"
    if skipped := [block["path"] for block in found["blocks"] if block["euler_skipped"]]:
        yield f"{'no eigenvalues':14s} {', '.join(skipped)} (they change the size: no square Jacobian)"


def _score_table(name: str, rows: list[dict[str, Any]]) -> Table:
    shown = []
    for row in rows:
        draws = row.get("draws", [row])
        errors, losses = ([draw[key] for draw in draws] for key in ("error", "loss"))
        error, loss = f"{mean(errors):.2%}", f"{mean(losses):.4f}"
        if name == "noise":
            what = f"deviation {row['level']:g}"
            error, loss = f"{error} ± {pstdev(errors):.2%}", f"{loss} ± {pstdev(losses):.4f}"
        elif name == "attacks":
            what = f"{row['attack']} {row['epsilon'] * 255:g}/255"
        else:
            what = f"{row['corruption']} {row['severity']}"
        shown.append((what, error, loss, str(draws[0]["samples"])))
    return Table(name, name, ("condition", "error", "loss", "images"), shown)


def _radius(block: dict[str, Any]) -> str:
    """Where Arnoldi gave up, the figure is of the eigenvalues found: at least so much."""
    least = "≥" if block["euler_radius"] is not None and not block["euler_converged"] else ""
    return least + _number(block["euler_radius"]) + (" stable" if block["euler_stable"] else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _exp(log: float | None) -> str:
    return "" if log is None else f"{math.exp(log):.3g}"
