"""How runs that are still to come are called, and which folders are refused."""

import json

import pytest

from timestepper.cli.gather import check_folder, describe, run_table, show
from timestepper.errors import RunDirectoryError
from timestepper.recipe.load import load
from timestepper.report.claims import load_claims
from timestepper.report.tables import Table
from timestepper.sweeps.plan import open_sets
from timestepper.sweeps.reproduce import DONE, MISSING, UNMEASURED, UNRECORDED

SHORT = ["run.epochs=120", "data.batch_size=128"]


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("paper/cifar10", [], "ResNet-56, CIFAR-10, lstm, paper's schedule (300 epochs, batch 64)"),
        ("paper/cifar10", SHORT, "ResNet-56, CIFAR-10, lstm, short schedule (120 epochs, batch 128)"),
        (
            "paper/cifar10",
            [*SHORT, "runtime.precision=tf32", "schedule.warmup_epochs=1"],
            "ResNet-56, CIFAR-10, lstm, short schedule (120 epochs, batch 128, warmup epochs 1.0), precision tf32",
        ),
        (
            "paper/cifar10",
            ["optimiser.lr=0.05"],
            "ResNet-56, CIFAR-10, lstm, other schedule (300 epochs, batch 64, lr 0.05)",
        ),
        ("smoke/digits-lstm", [], "ResNet-8, digits, lstm, 3 epochs, batch 64"),
        ("smoke/folder", ["data.size=28"], "ResNet-8, folder, lstm, 3 epochs, batch 16, size 28"),
    ],
)
def test_a_run_is_called_by_all_that_is_not_as_usual(name, changes, text):
    assert describe(load(name, changes), load_claims()[0]) == text


@pytest.mark.parametrize("short", [False, True])
def test_runs_of_one_name_differ_in_their_seed_alone(short):
    claims, _ = load_claims()
    found = {}
    for item in open_sets("everything", short=short):
        settings = json.loads(item.identity)
        settings["run"].pop("seed", None)
        found.setdefault(describe(item.recipe, claims), set()).add(json.dumps(settings))
    assert {name: len(recipes) for name, recipes in found.items() if len(recipes) > 1} == {}


def test_what_is_to_run_is_listed_apart_by_its_conditions():
    labels = [row[0].text for row in run_table("t", "", open_sets("baseline"), load_claims()[0]).rows]
    assert len(labels) == len(set(labels)) == 5


def test_seeds_of_one_kind_stand_together_with_where_each_of_them_stands():
    runs = [run for run in open_sets("half_start") if run.recipe.run.seed < 3]
    for run, state, hours in zip(runs, (DONE, UNRECORDED, MISSING), (0, 0, 2), strict=True):
        run.state, run.hours = state, hours
    (row,) = run_table("t", "", runs, load_claims()[0]).rows
    told = "done (seed 0); finished, to be recorded (seed 1); missing (seed 2)"
    assert [cell.text for cell in row[1:]] == ["half_start", told, "2.0 h"]
    for run in runs:
        run.state, run.message, run.hours = UNMEASURED, "noise", 0.0
    (row,) = run_table("t", "", runs, load_claims()[0]).rows
    assert [cell.text for cell in row[2:]] == ["recorded without noise (seeds 0 1 2)", ""]


def test_a_folder_that_is_a_file_is_told_from_a_missing_one(tmp_path):
    (tmp_path / "file").touch()
    for needed in (False, True):
        with pytest.raises(RunDirectoryError, match=r"^--results .*/file: is a file and not a folder; name"):
            check_folder(tmp_path / "file", "--results", needed)
        check_folder(tmp_path, "--results", needed)
    for missing in ("none", "file/none"):
        with pytest.raises(RunDirectoryError, match=f"{missing}: there is no such folder; name another"):
            check_folder(tmp_path / missing, "--results", needed=True)
        check_folder(tmp_path / missing, "--results")  # there are no records yet


def test_a_folder_that_cannot_be_read_says_why(tmp_path, monkeypatch):
    """Played by hand: to root, which tests may run as, every folder is open."""

    def closed(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("os.listdir", closed)
    with pytest.raises(RunDirectoryError, match=r": cannot be read \(Permission denied\); name"):
        check_folder(tmp_path, "--results")


@pytest.mark.parametrize("columns", ["80", "200"])
def test_many_columns_of_figures_leave_a_name_its_room(capsys, monkeypatch, columns):
    name = "ResNet-56, CIFAR-10, short schedule (120 epochs, batch 128): plain, 3 seeds"
    monkeypatch.setattr("sys.stdout.isatty", lambda: columns == "80")
    monkeypatch.setenv("COLUMNS", columns)
    show([Table("t", "caption", ("Runs", *map(str, range(11))), [(name, *["12.9 ± 1.2"] * 11)])])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert any("ResNet-56, CIFAR-10, short" in line for line in lines)
    assert len(lines) <= 12
