"""The result of a comparison as a table on the terminal: ratios to plain, with quartiles."""

from rich.console import Console
from rich.table import Table

from timestepper import terminal

_COLUMNS = ("variant", "train ms", "ratio", "x floor", "inference", "folded", "memory", "parameters", "first step")


def show(result: dict, console: Console | None = None) -> None:
    """One table per mode; a ratio is the median over rounds, in brackets its quartiles."""
    console = console or terminal.console(width=150)
    settings, floor, where = result["settings"], result["floor"], result["environment"]
    for mode, rows in result["modes"].items():
        title = f"{settings['model']}, batch {settings['batch']}, {settings['precision']}, {mode}, on {where['card']}"
        shown = Table(title=title, title_justify="left")
        for column in _COLUMNS:
            shown.add_column(column, justify="left" if column == "variant" else "right", no_wrap=True)
        for name, row in rows.items():
            shown.add_row(name, *(_cells(row) if "error" not in row else ["failed"]))
        console.print(shown)
        for name, row in rows.items():
            for error in (row.get("error"), row.get("inference_error")):
                if error:
                    console.print(f"{name}: {error}", markup=False)
    console.print(
        f"floor of the plain step: {floor['ms']:.3f} ms; {floor['features'] / 1e9:.3f} GB of features, "
        f"{floor['weights'] / 1e9:.3f} GB of weights, {floor['operations'] / 1e12:.3f} TFLOP, at "
        f"{floor['bytes_per_s'] / 1e9:.0f} GB/s and {floor['operations_per_s'] / 1e12:.2f} TFLOP/s measured in this run"
    )
    ratios = "ratios are to plain in the same round: median [quartiles]; plain beside itself shows the noise"
    console.print(ratios, markup=False)
    console.print("inference is before folding; folded is the plain network that fold returns")


def _cells(row: dict) -> list[str]:
    return [
        f"{row['train_ms']['median']:.3f}",
        _ratio(row["train_ratio"]),
        f"{row['times_floor']:.1f}",
        _ratio(row.get("inference_ratio")),
        _ratio(row.get("folded_ratio")),
        "" if row["peak_ratio"] is None else f"{row['peak_ratio']:.3f}",
        f"{row['parameters_ratio']:.4f}",
        f"{row['first_step_s']:.1f} s ({row['first_step_ratio']:.2f})",
    ]


def _ratio(spread: dict | None) -> str:
    return "" if spread is None else f"{spread['median']:.3f} [{spread['low']:.3f}, {spread['high']:.3f}]"
