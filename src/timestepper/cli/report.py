"""timestepper report: the page."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell, warn

TITLE = "Learned time steps: the paper and what we measured"


def report(
    results: Annotated[Path, typer.Option(help="folder of records")] = Path("results"),
    claims: Annotated[
        Path | None, typer.Option(help="folder of the paper's numbers; by default the shipped ones")
    ] = None,
    out: Annotated[Path, typer.Option(help="the page; the tables go beside it as .md")] = Path("report.html"),
    runs: Annotated[
        Path, typer.Option(help="folder of run directories; interrupted runs are named on the page")
    ] = Path("runs"),
    title: Annotated[str, typer.Option(help="title of the page")] = TITLE,
) -> None:
    """Write one self-contained HTML page and the same tables as Markdown from the records in RESULTS."""
    from timestepper.cli import gather
    from timestepper.report.groups import group

    gather.check_page(out, "--out")
    gather.check_folder(results, "--results", needed=True)
    gather.check_folder(claims or gather.FOLDER, "--claims", needed=True)
    found = gather.Collection(results, runs, claims or gather.FOLDER)
    found.warn()
    if not found.records:
        warn(f"{results} holds no sound record; timestepper reproduce NAME makes them")
    found.write(out, title)
    counted = sum(len(arm.runs) for arm in group(found.records))  # copies do not count
    tell(f"{counted} records from {results}: {out} and {out.with_suffix('.md')}")
