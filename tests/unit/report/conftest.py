"""Real records: plain and lstm on the digits, two seeds each, written by the project's own runs."""

import pytest

from timestepper.cli.gather import compute
from timestepper.recipe.load import load
from timestepper.records import load_records
from timestepper.report.claims import load_claims
from timestepper.report.page import write_page
from timestepper.report.tables import Table
from timestepper.runs.measure import complete
from timestepper.runs.run import Run
from timestepper.runs.start import train


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    for kind in ("none", "lstm"):
        for seed in (0, 1):
            changes = [f"controller.kind={kind}", f"run.seed={seed}", "run.epochs=2", "run.tensorboard=false"]
            run = folder / "runs" / f"{kind}{seed}"
            assert train(Run(load("smoke/digits", changes), "smoke/digits", run)) == 0
            complete(run, folder / "results", ["noise", "stability"] if seed == 0 else [])
    return folder / "results"


@pytest.fixture
def records(results):
    found, problems = load_records(results)
    assert not problems
    return found


@pytest.fixture(scope="session")
def computed():
    """Counts, shapes and Figure 1 of the shipped claims."""
    return compute(load_claims()[0])


@pytest.fixture(scope="session")
def whole_page(results, computed, tmp_path_factory):
    """The page as ``timestepper report`` writes it, with claims, counts and pending runs."""
    folder = tmp_path_factory.mktemp("page")
    claims, _ = load_claims()
    records, _ = load_records(results)
    out = folder / "page.html"
    pending = Table("pending", "Not yet run", ("Runs", "For"), [("ResNet-506, CIFAR-10, lstm", "fig5")])
    options = {"computed": computed, "pending": pending}
    problems = ["results/x.json: the checksum does not fit"]
    write_page(records, claims, out, folder / "page.md", "A <title> & more", problems=problems, **options)
    return out
