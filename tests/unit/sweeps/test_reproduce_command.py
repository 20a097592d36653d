"""The command in processes of its own, on the digits: train, skip, resume, measure, report."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from tiny_reproduce import run, stop_when

from timestepper.files import digest
from timestepper.sweeps.plan import open_sets

SET = """
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise", "stability"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=2", "run.tensorboard=false"]
vary = { "controller.kind" = ["none", "lstm"] }
hours = 0.01
"""


@pytest.fixture(scope="module")
def done(folder):
    """A set that was stopped in the middle and then brought to its end."""

    def begun():
        return any(path.stat().st_size for path in (folder / "runs").glob("*/metrics.jsonl"))

    process, *stopped = stop_when(begun, signal.SIGINT, folder, "reproduce", "mini.toml")
    listed = run(folder, "reproduce", "mini.toml", "--list")
    finished = run(folder, "reproduce", "mini.toml")
    return process.returncode, stopped, listed, finished


def test_an_interrupted_set_says_so_and_goes_on(folder, done):
    code, (_, errors), listed, finished = done
    assert code == 130
    assert "the same command goes on from there" in errors
    assert "0 of 4 runs done" in listed.stdout
    assert "interrupted" in listed.stdout
    assert finished.returncode == 0, finished.stderr
    assert "going on at step" in finished.stdout
    assert len(list((folder / "results").glob("*.json"))) == 4


def test_ours_are_printed_with_intervals(done):
    finished = done[3]
    assert "ResNet-8, digits, 2 epochs, batch 64: plain" in finished.stdout
    assert "ResNet-8, digits, 2 epochs, batch 64: lstm" in finished.stdout


def test_what_was_measured_is_printed_too(done):
    finished = done[3]
    assert "by standard deviation of the noise" in finished.stdout
    assert "growth of a perturbation" in finished.stdout


def test_a_record_that_lacks_a_measurement_is_not_called_finished(folder, done, tmp_path):
    """The weights to measure it on stayed on another machine."""
    (tmp_path / "results").mkdir()
    (tmp_path / "mini.toml").write_text(SET)
    for path in (folder / "results").glob("*lstm*.json"):
        content = json.loads(path.read_text())
        content = {key: value for key, value in content.items() if key not in ("noise", "sha256")}
        content["sha256"] = digest(content)
        (tmp_path / "results" / path.name).write_text(json.dumps(content))
        shutil.copy(path.with_suffix(".npz"), tmp_path / "results")
    listed = run(tmp_path, "reproduce", "mini.toml", "--list")
    assert "recorded without noise (seeds 0 1)" in listed.stdout
    assert "0 of 4 runs done" in listed.stdout


def test_a_short_schedule_is_marked_in_the_list_too(tmp_path):
    result = run(tmp_path, "reproduce", "fig4", "--list", "--schedule", "short", "--json")
    (table,) = json.loads(result.stdout)
    assert len(table["rows"]) == 3
    assert all(row[0]["text"].endswith("short schedule (120 epochs, batch 128)") for row in table["rows"])
    listed = run(tmp_path, "reproduce", "counts", "--list")
    assert "nothing to train" in listed.stdout
    assert "25.56" not in listed.stdout


def test_records_carry_noise_and_stability(folder, done):
    for path in (folder / "results").glob("*.json"):
        content = json.loads(path.read_text())
        assert len(content["noise"]["levels"]) == 11
        assert {len(draws) for draws in content["noise"]["error"]} == {5}
        clean = content["noise"]["error"][0]
        assert clean == pytest.approx([content["final"]["test"]["error"]] * 5)
        growth = content["stability"]
        for measured, bound in zip(growth["log_growth"]["power"], growth["log_bound"], strict=True):
            assert measured <= bound


def test_what_is_done_is_skipped(folder, done):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = run(folder, "reproduce", "mini.toml")
    assert again.returncode == 0
    assert "epoch 1" not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
    assert "4 of 4 runs done" in run(folder, "reproduce", "mini.toml", "--list").stdout


def test_a_record_that_was_lost_is_written_again_without_training(folder, done):
    lost = sorted((folder / "results").glob("*.json"))[0]
    content = lost.read_bytes()
    lost.unlink()
    assert "finished, to be recorded" in run(folder, "reproduce", "mini.toml", "--list").stdout
    again = run(folder, "reproduce", "mini.toml")
    assert "epoch 1" not in again.stdout
    assert lost.read_bytes() == content


def test_a_damaged_record_is_named_and_the_rest_reported(folder, done):
    bad = sorted((folder / "results").glob("*.json"))[0]
    content = bad.read_bytes()
    bad.write_bytes(content.replace(b'"seed": 0', b'"seed": 7'))
    try:
        result = run(folder, "report", "--out", "page.html")
        assert result.returncode == 0, result.stderr
        assert f"warning: results/{bad.name}: the checksum does not fit" in result.stderr
        assert "3 records" in result.stdout
        page = (folder / "page.html").read_text()
        assert bad.name in page
        assert "Expected GPU time" in page
        pending = (folder / "page.md").read_text().partition("## Not yet run")[2].partition("## Records")[0]
        assert re.search(r"\d+ runs, [\d.]+ h in all", pending)
        assert "short schedule (120 epochs, batch 128)" in pending
        assert "digits" not in pending  # the demo is no part of the study
        assert "results/" + bad.name in (folder / "page.md").read_text()
    finally:
        bad.write_bytes(content)


def test_a_run_that_cannot_start_does_not_stop_the_others(folder, done):
    mixed = SET.replace('"mini"', '"mixed"') + '\n[[train]]\nbase = "paper/cifar10"\nhours = 0.1\n'
    (folder / "mixed.toml").write_text(mixed.replace("measure", "short = []\nmeasure"))
    nowhere = folder / "nowhere"
    nowhere.mkdir(exist_ok=True)
    result = run(folder, "reproduce", "mixed.toml", "--data-root", str(nowhere))
    assert result.returncode == 1
    assert result.stderr.count("error:") == 1  # the second seed would only say the same
    assert str(nowhere) in result.stderr
    assert "ResNet-8, digits" in result.stdout


def test_counts_as_json(tmp_path):
    result = run(tmp_path, "reproduce", "counts", "--json")
    assert result.returncode == 0, result.stderr
    tables = {table["name"]: table for table in json.loads(result.stdout)}
    assert list(tables) == [f"table{number}-counts" for number in (1, 2, 3, 6)]
    for table in tables.values():
        used = {note for row in table["rows"] for cell in row for note in cell["notes"]}
        assert used == set(range(1, len(table["notes"]) + 1))


def test_an_unknown_name_is_one_line(tmp_path):
    result = run(tmp_path, "reproduce", "table9")
    assert result.returncode == 2
    assert result.stderr.startswith("error: unknown set 'table9'; known are fig1")
    assert "Traceback" not in result.stderr


def test_figure_1_needs_no_run(tmp_path):
    result = run(tmp_path, "reproduce", "fig1")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count(" supported ") >= 3
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()  # where nothing is recorded, nothing is in the way
    assert run(tmp_path, "reproduce", "fig1", "--results", "file").stdout == result.stdout


@pytest.mark.parametrize(
    ("out", "named"), [("folder", "folder"), ("page.md", "page.md"), ("file/page.html", "file"), ("x.html", "x.md")]
)
def test_a_page_that_cannot_be_written_is_one_line(tmp_path, out, named):
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.md").mkdir()
    (tmp_path / "file").touch()
    result = run(tmp_path, "report", "--out", out)
    assert result.returncode
    assert f"{named}: " in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "page.md").exists()  # the tables would have taken the place of the page
    assert not (tmp_path / "x.html").exists()  # nor is a page written whose tables have no place


def test_a_run_whose_record_was_edited_is_named_and_the_others_go_on(folder, done, tmp_path):
    (tmp_path / "mini.toml").write_text(SET)
    shutil.copytree(folder / "runs", tmp_path / "runs")
    edited, *others = sorted((tmp_path / "runs").glob("*/record.json"))
    edited.write_text(edited.read_text().replace('"top5_error": 0', '"top5_error": 1', 1))
    result = run(tmp_path, "reproduce", "mini.toml")
    assert result.returncode == 1
    (told,) = result.stderr.splitlines()
    assert f"{edited.parent.name}/record.json: changed since the run wrote it" in told
    assert len(list((tmp_path / "results").glob("*.json"))) == len(others) == 3
    edited.unlink()
    assert run(tmp_path, "reproduce", "mini.toml").returncode == 0
    assert len(list((tmp_path / "results").glob("*.json"))) == 4


OTHER = """
set = "other"
title = "Digits"
seeds = [0, 1]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=1", "run.tensorboard=false", "optimiser.lr=0.03"]
hours = 0.01
"""


def test_the_record_of_another_run_is_refused_and_the_others_go_on(folder, done, tmp_path):
    (tmp_path / "other.toml").write_text(OTHER)
    place = open_sets(str(tmp_path / "other.toml"), out=tmp_path / "runs")[0].path
    shutil.copytree(sorted((folder / "runs").iterdir())[0], place)
    first, again = (run(tmp_path, "reproduce", "other.toml", *more) for more in ((), ("--jobs", "2")))
    for result in (first, again):
        assert result.returncode == 1
        (told,) = result.stderr.splitlines()
        assert f"{place.name}/record.json: the record of a run with other settings or images; move" in told
    assert "epoch 1" in first.stdout
    (path,) = (tmp_path / "results").glob("*.json")
    content = json.loads(path.read_text())
    assert (content["seed"], content["recipe"]["optimiser"]["lr"]) == (1, 0.03)
    listed = run(tmp_path, "reproduce", "other.toml", "--list").stdout
    assert "missing, its folder holds another run (seed 0); done (seed 1)" in " ".join(listed.split())
    shutil.rmtree(place)
    assert run(tmp_path, "reproduce", "other.toml").returncode == 0
    assert len(list((tmp_path / "results").glob("*.json"))) == 2


def test_two_records_of_one_run_are_told_and_stand_on_the_page_once(folder, done):
    one = sorted((folder / "results").glob("*.json"))[0]
    other = one.with_name("z.json")
    for suffix in (".json", ".npz"):
        shutil.copy(one.with_suffix(suffix), other.with_suffix(suffix))
    told = f"results/z.json: the same run as results/{one.name}; left out"
    one_claim = folder / "one-claim"  # all of them take ten seconds
    one_claim.mkdir()
    shutil.copy(Path(__file__).parents[3] / "claims" / "fig5.toml", one_claim)
    try:
        for arguments in (
            ("report", "--out", "twice.html", "--claims", one_claim),
            ("reproduce", "mini.toml"),
            ("reproduce", "mini.toml", "--list"),
        ):
            result = run(folder, *arguments)
            assert result.returncode == 0, result.stderr
            assert result.stderr.count(f"warning: {told}") == 1
            if arguments[0] == "report":
                assert result.stdout.startswith(f"{len(list((folder / 'results').glob('*.json'))) - 1} records from ")
        assert (folder / "twice.md").read_text().count(told) == 1
    finally:
        other.unlink()
        other.with_suffix(".npz").unlink()


@pytest.mark.parametrize("command", [("report",), ("reproduce", "mini.toml"), ("reproduce", "mini.toml", "--list")])
def test_results_that_are_a_file_are_refused(tmp_path, command):
    (tmp_path / "mini.toml").write_text(SET)
    (tmp_path / "results").touch()
    result = run(tmp_path, *command)
    assert result.returncode == 2
    (told,) = result.stderr.splitlines()
    assert told.startswith("error: --results results: is a file and not a folder; ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mini.toml", "results"]


def test_results_that_cannot_be_written_cost_no_training(tmp_path):
    (tmp_path / "mini.toml").write_text(SET)
    (tmp_path / "file").touch()
    result = run(tmp_path, "reproduce", "mini.toml", "--results", "file/results")
    assert result.returncode == 2
    assert "file/results" in result.stderr
    assert not (tmp_path / "runs").exists()


def test_a_broken_claim_is_named_where_only_the_counts_are_listed(tmp_path):
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims/table1.toml").write_text("nonsense")
    result = run(tmp_path, "reproduce", "counts", "--list", "--claims", "claims")
    assert "table1.toml" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["counts", "run.epochs=3"], "counts trains nothing, so run.epochs=3 would change nothing"),
        (["fig1", "x.y=1"], "fig1 trains nothing, so x.y=1 would change nothing"),
        (["fig4", "run.seed=7"], "run.seed=7 would change nothing"),
        (["counts", "--claims", "nosuch"], "--claims nosuch: there is no"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path, arguments, told):
    result = run(tmp_path, "reproduce", *arguments, "--list")
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert told in line
