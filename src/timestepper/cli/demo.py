"""timestepper demo: the whole job on a data set that needs no download, in two minutes on two CPU cores."""

import os
from pathlib import Path
from typing import Annotated

import typer

from timestepper.terminal import tell

TOLERANCE = 1e-5  # for GPUs, where two passes may run different kernels


def demo(
    out: Annotated[Path, typer.Option(help="folder for runs, records and the page")] = Path("demo"),
) -> None:
    """Train a plain and a stepped network on digits, fold, compare, and write a page about it."""
    # So small a network gains nothing from a second thread, and on a busy machine loses much by waiting for it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from timestepper.cli import gather
    from timestepper.errors import MismatchError
    from timestepper.sweeps.reproduce import bring_to_end

    page = out / "index.html"
    gather.check_page(page, "--out")
    found = gather.Collection(out / "results", out / "runs", claims=None)
    runs = found.plan("demo")
    code = bring_to_end(runs, found.results)
    found.read()
    found.warn()
    if code:
        raise typer.Exit(code)
    gather.show(found.tables("demo", runs))
    folds = [(record, *record.final.fold) for record in found.records if record.final.fold]
    for record, error, difference in folds:
        errors = f"error {record.final.test.error:.2%} attached, {error:.2%} folded"
        tell(f"seed {record.seed}: {errors}; largest difference of logits {difference}")
    found.write(page, "A network that learns its own time steps")
    tell(f"The page: {page.resolve()}")
    for record, _, difference in folds:  # folding is exact by construction: this would be a mistake in this library
        if difference > TOLERANCE:
            wrong = "the folded network does not give the attached network's logits"
            raise MismatchError(f"{record.path}: {wrong}; please report this")
