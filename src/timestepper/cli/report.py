"""timestepper report: the page."""

from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell


def report(
    results: Annotated[Path | None, typer.Option(help="folder of records; by default results")] = None,
    claims: Annotated[
        Path | None, typer.Option(help="folder of the paper's numbers; by default the shipped ones")
    ] = None,
    out: Annotated[Path, typer.Option(help="the page; the tables go beside it as .md")] = Path("report.html"),
    runs: Annotated[
        Path, typer.Option(help="folder of run directories; interrupted runs are named on the page")
    ] = Path("runs"),
    title: Annotated[
        str, typer.Option(help="title of the page")
    ] = "Learned time steps: the paper and what we measured",
) -> None:
    """Write one self-contained HTML page and the same tables as Markdown from the records in RESULTS."""
    from timestepper import report as reports
    from timestepper.cli import gather
    from timestepper.errors import RunDirectoryError
    from timestepper.experiment.reproduce import contents, plan
    from timestepper.experiment.sets import open_sets
    from timestepper.files import prepare_file
    from timestepper.report.claims import FOLDER
    from timestepper.report.groups import repeated

    if out.is_dir() or out.suffix == ".md":
        raise RunDirectoryError(f"--out {out}: name the page, such as report.html; its tables go beside it as .md")
    gather.check_folders({"--results": results, "--claims": claims})
    results = results or Path("results")
    gather.check_results(results)
    tables = out.with_suffix(".md")
    for path in (out, tables):  # neither is written where the other cannot be
        prepare_file(path)
    found_claims, problems = reports.load_claims(claims or FOLDER)
    records, damaged = reports.load_records(results)
    wanted = [item for item in open_sets("everything") if item.sets != ("demo",)]  # no part of the study, and no GPU's
    steps = plan(wanted, contents(record.path for record in records), runs)
    problems += damaged
    none = [] if records else [f"{results} holds no sound record; timestepper reproduce NAME makes them"]
    gather.warn(problems + repeated(records) + none)  # the page finds the repeated ones itself
    computed, pending = gather.compute(found_claims), gather.pending(steps, found_claims)
    reports.write_page(records, found_claims, out, tables, title, problems=problems, computed=computed, pending=pending)
    tell(f"{len(records)} records from {results}: {out} and {tables}")
