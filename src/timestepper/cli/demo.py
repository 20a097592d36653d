"""timestepper demo: the whole job on a data set that needs no download, in two minutes on two CPU cores."""

import os
from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell

TOLERANCE = 1e-5


def demo(
    out: Annotated[Path, typer.Option(help="folder for runs, records and the page")] = Path("demo"),
) -> None:
    """Train a plain and a stepped network on digits, fold, compare, and write a page about it."""
    # So small a network gains nothing from a second thread, and on a busy machine loses much by waiting for it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from timestepper import report
    from timestepper.cli import gather
    from timestepper.experiment.reproduce import bring_to_end, contents, plan
    from timestepper.experiment.sets import open_sets
    from timestepper.files import prepare_file
    from timestepper.report.page import tables_of

    results, page, tables = out / "results", out / "index.html", out / "index.md"
    for path in (page, tables):  # what is in their way is better told before the training than after it
        prepare_file(path)
    records, _ = report.load_records(results)
    steps = plan(open_sets("demo"), contents(record.path for record in records), out / "runs")
    code = bring_to_end(steps, results)
    records, problems = report.load_records(results)
    gather.warn(problems)
    if code:
        raise typer.Exit(code)
    gather.show(tables_of(("demo",), records, {}, report.Computed(), records))
    _say_folding(records)
    report.write_page(records, {}, page, tables, "A network that learns its own time steps", problems=problems)
    tell(f"The page: {page.resolve()}")
    _check_folding(records)


def _check_folding(records) -> None:
    """Folding is exact by construction: a difference would be a mistake in this library, and the demo fails.

    The tolerance is for GPUs, where two passes may run different kernels.
    """
    from timestepper.errors import MismatchError

    for record in records:
        final = record.final
        if "folded" in final and final["fold_difference"] > TOLERANCE:
            raise MismatchError(
                f"{record.path}: the folded network does not give the attached network's logits; please report this"
            )


def _say_folding(records) -> None:
    for record in records:
        if "folded" in record.final:
            attached, folded = record.final["test"]["error"], record.final["folded"]["error"]
            difference = record.final["fold_difference"]
            tell(
                f"seed {record.seed}: error {attached:.2%} attached, {folded:.2%} folded; "
                f"largest difference of logits {difference}"
            )
