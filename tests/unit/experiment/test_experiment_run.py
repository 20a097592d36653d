"""Whole runs on the digits, through the command line, in this process."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from timestepper.adapters import create_model
from timestepper.cli import app
from timestepper.engine.checkpoint import read
from timestepper.engine.loop import Interrupted, Training
from timestepper.errors import CheckpointError, RecipeError, RecordError, RunDirectoryError
from timestepper.experiment import record
from timestepper.experiment.load import load

TINY = (
    "data.batch_size=256",
    "data.test_batch_size=120",
    "run.epochs=2",
    "run.tensorboard=false",
    "runtime.device=cpu",
)


def call(*arguments, code=0):
    """A command's output; errors of the project are raised as they are."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run = folder / "stepped"
    output = call("train", "smoke/digits-lstm", *TINY, "--run-dir", run, "--results", folder / "results")
    return run, output


@pytest.fixture
def run(finished, tmp_path):
    """A copy to work on."""
    return shutil.copytree(finished[0], tmp_path / "run")


def test_the_summary_shows_errors_and_evolution_time(finished):
    _, output = finished
    for part in ("epoch 2/2", "dt layer1", "train error", "test error", "folded error", "(equal;", "T = "):
        assert part in output


def test_the_folder_holds_everything(finished):
    run, _ = finished
    names = {path.name for path in run.iterdir()}
    assert names == {
        "checkpoints",
        "metrics.jsonl",
        "recipe.toml",
        "record.json",
        "run.lock",
        "status.json",
        "timing.jsonl",
        "weights.safetensors",
        "weights.safetensors.sha256",
    }
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["step"], status["steps"]) == ("finished", 10, 10)
    assert load(str(run / "recipe.toml")) == load("smoke/digits-lstm", TINY)


def test_exported_weights_are_those_of_the_last_checkpoint(finished):
    run, _ = finished
    exported, saved = load_file(run / "weights.safetensors"), read(run / "checkpoints/step-00000010.pt")["model"]
    assert exported.keys() == saved.keys()
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    assert "is right" in call("verify", run / "weights.safetensors")


def test_the_record_is_complete_and_signed(finished):
    run, _ = finished
    made = json.loads((run / "record.json").read_text())
    assert made["schema"] == record.SCHEMA
    assert record.digest({key: value for key, value in made.items() if key != "sha256"}) == made["sha256"]
    assert made["recipe"]["controller"]["kind"] == "lstm"
    assert [line["epoch"] for line in made["epochs"]] == [1, 2]
    assert made["final"]["test"]["error"] == made["final"]["folded"]["error"]
    assert made["final"]["test"]["error"] == made["epochs"][-1]["test"]["error"]
    assert made["final"]["fold_difference"] <= 1e-5
    assert [len(made["step_sizes"][stage][0]) for stage in ("layer1", "layer2", "layer3")] == [16, 32, 64]
    assert made["wall_seconds"] > 0
    assert {"commit", "versions", "device", "data_sha256", "seed", "world"} <= made.keys()
    copies = list((run.parent / "results").iterdir())
    assert [copy.name for copy in copies] == [record.file_name(made)]
    assert copies[0].read_bytes() == (run / "record.json").read_bytes()
    assert copies[0].name.startswith("smoke-digits-lstm_cifar-resnet8_lstm_")


def test_the_record_is_read_by_the_report(finished):
    from timestepper.report import load_records

    records, problems = load_records(finished[0].parent / "results")
    assert problems == []
    assert records[0].name == "smoke/digits-lstm"


def test_a_half_run_has_no_record(run):
    made = json.loads((run / "record.json").read_text())
    facts = {"data_sha256": "", "device": "", "final": {}, "step_sizes": {}, "world": 1}
    with pytest.raises(RecordError, match="1 of 2 epochs"):
        record.make(load("smoke/digits-lstm", TINY), name="x", run=run, epochs=made["epochs"][:1], **facts)


def test_the_same_command_again_does_nothing(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert "is finished" in call("train", "smoke/digits-lstm", *TINY, "--run-dir", run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_still_gives_its_record(run, tmp_path):
    call("train", "smoke/digits-lstm", *TINY, "--run-dir", run, "--results", tmp_path / "results")
    (copy,) = (tmp_path / "results").iterdir()
    assert copy.read_bytes() == (run / "record.json").read_bytes()


def test_a_results_folder_that_cannot_be_is_refused_before_the_run(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match=r"cannot write .*file"):
        call("train", "smoke/digits", *TINY, "--run-dir", tmp_path / "run", "--results", tmp_path / "file")
    assert not (tmp_path / "run").exists()


def test_a_changed_recipe_is_refused_and_the_run_stays_finished(run):
    with pytest.raises(RecipeError, match=r"optimiser\.lr 0\.1 -> 0\.2"):
        call("train", "smoke/digits-lstm", *TINY, "optimiser.lr=0.2", "--run-dir", run)
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


def test_another_network_is_refused(run):
    with pytest.raises(CheckpointError, match=r"checkpoint is .*controller lstm, you asked for .*controller none"):
        call("train", "smoke/digits", *TINY, "--run-dir", run)


def test_a_finished_run_can_be_made_longer_when_asked_for(run):
    with pytest.raises(RecipeError, match=r"run\.epochs 2 -> 3"):
        call("train", "smoke/digits-lstm", *TINY, "run.epochs=3", "--run-dir", run)
    output = call("train", "smoke/digits-lstm", *TINY, "run.epochs=3", "--run-dir", run, "--override")
    assert "going on at step 10 of 15" in output
    assert len(json.loads((run / "record.json").read_text())["epochs"]) == 3


def test_a_larger_batch_counts_fewer_steps_and_its_checkpoint_is_still_the_newest(run):
    before = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    longer = ("run.epochs=3", "data.batch_size=512")
    output = call("train", "smoke/digits-lstm", *TINY, *longer, "--run-dir", run, "--override")
    assert "beginning of epoch 3, now step 4" in output
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["step-00000004.pt", "step-00000006.pt"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2, 3]
    assert json.loads((run / "record.json").read_text())["final"]["test"]["error"] == lines[-1]["test"]["error"]
    after = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    assert [line["seconds"] for line in after[: len(before)]] == [line["seconds"] for line in before]


def test_another_batch_size_drops_the_lines_of_the_epoch_that_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "_end_epoch", stop_at_once)
    often = ("run.checkpoint_steps=2", "run.log_steps=1")
    call("train", "smoke/digits", *TINY, *often, "--run-dir", tmp_path / "run", code=143)
    monkeypatch.undo()
    call("train", "smoke/digits", *TINY, *often, "data.batch_size=512", "--run-dir", tmp_path / "run", "--override")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4]


def stop_at_once(training):
    raise Interrupted(15, training.step)


def test_evaluate(run):
    output = call("evaluate", run, "--device", "cpu")
    final = json.loads((run / "record.json").read_text())["final"]
    assert f"test error    {final['test']['error']:.2%}, loss" in output
    assert "step-00000010.pt, after 2 of 2 epochs" in output
    found = json.loads(call("evaluate", run, "--json", "--device", "cpu"))
    assert found["test"] == final["test"]
    assert found["folded"]["error"] == final["folded"]["error"]


def test_evaluate_keeps_its_remarks_out_of_the_json_and_needs_no_gpu_of_a_run_that_had_some(run):
    recipe = run / "recipe.toml"
    wishes = {"cuda_graph = false": "cuda_graph = true", "sync_bn = false": "sync_bn = true"}
    text = recipe.read_text()
    for before, after in wishes.items():
        text = text.replace(before, after)
    recipe.write_text(text)
    result = CliRunner().invoke(app, ["evaluate", str(run), "--json", "--device", "cpu"])
    assert json.loads(result.stdout)["test"]["samples"] == 360
    assert result.stderr == "no CUDA graph: there is no CUDA device; running step by step\n"


def test_evaluate_runs_in_one_process(run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    result = CliRunner().invoke(app, ["evaluate", str(run)])
    assert result.exit_code != 0
    assert "start it without torchrun" in str(result.exception)


def test_fold_gives_the_plain_class_its_weights(run, tmp_path):
    call("fold", run, "-o", tmp_path / "plain.safetensors")
    plain = create_model("cifar/resnet8", num_classes=10, in_chans=1)
    plain.load_state_dict(load_file(tmp_path / "plain.safetensors"), strict=True)
    assert "is right" in call("verify", tmp_path / "plain.safetensors")
    content = bytearray((tmp_path / "plain.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "plain.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="sha256"):
        call("verify", tmp_path / "plain.safetensors")


def test_fold_needs_no_images(run, tmp_path, monkeypatch):
    monkeypatch.setattr("timestepper.experiment.build.dataset", lambda recipe: pytest.fail("opened the data set"))
    call("fold", run, "-o", tmp_path / "plain.safetensors")
    assert (tmp_path / "plain.safetensors.sha256").exists()


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '"running"'])
def test_list_names_a_run_whose_status_is_no_status(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "status.json").write_text(text)
    assert "unreadable" in call("list", tmp_path)


def test_list_cuts_nothing_off(finished, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    folder = finished[0].parent
    (folder / "a-name-that-is-long-enough-to-need-more-than-one-line-of-the-table").mkdir()
    shutil.copy(finished[0] / "status.json", next(folder.glob("a-name*")))
    output = call("list", folder)
    assert "…" not in output
    assert json.loads((finished[0] / "status.json").read_text())["time"] in output


def test_list(finished):
    run, _ = finished
    output = call("list", run.parent)
    assert "stepped" in output
    assert "finished" in output
    assert "10/10" in output
    with pytest.raises(RunDirectoryError, match="no runs below"):
        call("list", run / "checkpoints")


def test_no_patience_with_other_processes_is_refused(tmp_path):
    call("train", "smoke/digits", *TINY, "--run-dir", tmp_path / "run", "--dist-timeout", "-5", code=2)
    assert not (tmp_path / "run").exists()


def test_check_data_shows_how_far_it_is_in_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    monkeypatch.setattr("timestepper.data.check", lambda name, root, progress: progress(3, 12) or [], raising=False)
    assert "25%" in CliRunner().invoke(app, ["check-data", "folder"]).stderr


def test_check_data():
    assert "all files are good" in call("check-data", "digits")


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="is no run directory"):
        call("evaluate", tmp_path)


def test_fields_are_listed():
    assert "run.seed = 0  Seed of everything random. (allowed: at least 0 and at most 9223372036854775807)" in call(
        "train", "--fields"
    )


def test_a_plain_network_has_no_folded_twin(tmp_path):
    output = call("train", "smoke/digits", *TINY, "run.epochs=1", "--run-dir", tmp_path / "plain")
    assert "folded" not in output
    assert json.loads((tmp_path / "plain/record.json").read_text())["step_sizes"] == {}
    with pytest.raises(RunDirectoryError, match=r"plain network.* its weights are in .*plain/weights\.safetensors"):
        call("fold", tmp_path / "plain", "-o", tmp_path / "x.safetensors")


def test_divergence_leaves_a_sound_run_and_says_where(tmp_path):
    from timestepper.errors import DivergedError

    with pytest.raises(DivergedError, match=r"step \d+: loss"):
        call("train", "smoke/digits", *TINY, "optimiser.lr=1e30", "--run-dir", tmp_path / "run")
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["hopeless"]) == ("failed", True)
    assert read(tmp_path / "run/checkpoints/step-00000000.pt")["step"] == 0


def test_torchrun_does_not_restart_a_run_that_failed_by_itself(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text(json.dumps({"state": "failed", "hopeless": True, "error": "it diverged"}))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(RunDirectoryError, match=r"not restarted.*it diverged"):
        call("train", "smoke/digits", *TINY, "--run-dir", tmp_path / "run")
