"""What the stability command prints."""

import json
import math
import sys
from typing import Any

from timestepper import terminal
from timestepper.terminal import tell


def as_json(found: dict[str, Any]) -> str:
    return json.dumps(_finite(found), indent=2)


def _finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON has no words for."""
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
    """Print all that was found; in a pipe as wide as the tables are."""
    console = terminal.console(highlight=False, width=None if sys.stdout.isatty() else 140)
    if "blocks" in found:
        console.print(block_table(found))
        _print_summary(console, found)
    for name in ("noise", "attacks", "corruptions"):
        if name in found:
            console.print(_score_table(name, found[name]))


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


def block_table(found: dict[str, Any]):
    """One line per block."""
    from rich import box
    from rich.table import Table

    shape = "x".join(map(str, found["inputs"]))
    title = f"{found['name']}: growth and gradients of every block, inputs {shape}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    # In 80 columns the headings fold; a name or a figure that is cut off would be of no use.
    table.add_column("block", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", overflow="fold")
    stage = found["blocks"][0]["stage"]
    for block in found["blocks"]:
        if block["stage"] != stage:
            table.add_section()
            stage = block["stage"]
        table.add_row(block["path"], *(column(block) for column in COLUMNS.values()))
    return table


def _print_summary(console: Any, found: dict[str, Any]) -> None:
    for name, label in (("bound", "bound"), ("bound_without_steps", "without steps")):
        if name in found:
            bound = found[name]
            parts = ", ".join(f"{stage} {part:.2f}" for stage, part in bound["stages"].items())
            console.print(
                f"{label:14s} log {bound['log']:.2f} ({parts}); certainly below {bound['log_certified']:.2f}; "
                f"reshaped kernels would say {bound['log_reshaped']:.2f}",
                soft_wrap=True,
            )
    grown = ", ".join(f"{kind} {growth['end_to_end']:.3g}" for kind, growth in found["growth"].items())
    console.print(f"{'measured':14s} {grown} (times, first block's input to last block's output)", soft_wrap=True)
    if "evolution_time" in found:
        times = ", ".join(f"{stage} {time:.3f}" for stage, time in found["evolution_time"].items())
        console.print(f"{'evolution':14s} T = {sum(found['evolution_time'].values()):.3f} ({times})")
    skipped = [block["path"] for block in found["blocks"] if block["euler_skipped"]]
    if skipped:
        console.print(
            f"{'no eigenvalues':14s} {', '.join(skipped)} (they change the size: no square Jacobian)", soft_wrap=True
        )


def _score_table(name: str, rows: list[dict[str, Any]]):
    from statistics import mean, pstdev

    from rich.table import Table

    table = Table(title=name, title_justify="left")
    for column in ("condition", "error", "loss", "images"):
        table.add_column(column, justify="left" if column == "condition" else "right")
    for row in rows:
        if name == "noise":
            errors, losses = ([draw[key] for draw in row["draws"]] for key in ("error", "loss"))
            error, loss = f"{mean(errors):.2%} ± {pstdev(errors):.2%}", f"{mean(losses):.4f} ± {pstdev(losses):.4f}"
            table.add_row(f"deviation {row['level']:g}", error, loss, str(row["draws"][0]["samples"]))
        else:
            attack = f"{row['attack']} {row['epsilon'] * 255:g}/255" if name == "attacks" else ""
            what = attack or f"{row['corruption']} {row['severity']}"
            table.add_row(what, f"{row['error']:.2%}", f"{row['loss']:.4f}", str(row["samples"]))
    return table


def _radius(block: dict[str, Any]) -> str:
    """Where Arnoldi gave up, the figure is of the eigenvalues found: at least so much."""
    least = "≥" if block["euler_radius"] is not None and not block["euler_converged"] else ""
    return least + _number(block["euler_radius"]) + (" stable" if block["euler_stable"] else "")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _exp(log: float | None) -> str:
    return "" if log is None else f"{math.exp(log):.3g}"
