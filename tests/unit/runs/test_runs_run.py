"""Whole runs on the digits, through the command line, in this process."""

import contextlib
import json
import math
import shutil
import subprocess

import pytest
import torch
from digit_folder import write_digit_folder
from safetensors.torch import load_file
from typer.testing import CliRunner

import timestepper
from timestepper import records
from timestepper.adapters import create_model
from timestepper.cli import app
from timestepper.data import open_dataset
from timestepper.engine.checkpoint import read
from timestepper.engine.journal import FolderJournal
from timestepper.engine.loop import Interrupted, Training
from timestepper.engine.rundir import RunDirectory
from timestepper.engine.signals import Signals
from timestepper.errors import (
    CheckpointError,
    DistributedError,
    LoaderError,
    RecipeError,
    RecordError,
    RunDirectoryError,
    StabilityError,
)
from timestepper.files import digest, with_checksum
from timestepper.recipe.load import as_dict, load
from timestepper.records import making
from timestepper.runs import finish, measure
from timestepper.runs.load import restore
from timestepper.runs.measure import complete
from timestepper.runs.run import Run
from timestepper.runs.train import Process
from timestepper.stability import open_chain, proposition_1
from timestepper.sweeps.reproduce import MISSING, plan

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


def test_the_summary_says_where_a_fold_is_not_equal():
    figures = {"test": {"error": 0.1, "loss": 1.0}, "folded": {"error": 0.1}, "fold_difference": 0.0}
    figures["evolution_time"] = {"a": 1.0, "b": 2.5}
    assert "folded error  10.00% (equal; largest" in "\n".join(finish.summary_lines(figures))
    assert "T = 3.500 (a 1.000, b 2.500)" in "\n".join(finish.summary_lines(figures))
    figures["folded"]["error"] = 0.2
    assert "folded error  20.00% (NOT EQUAL; largest" in "\n".join(finish.summary_lines(figures))


def test_step_sizes_are_recorded_to_five_digits():
    net = timestepper.attach(create_model("cifar/resnet8"), "independent")
    with torch.no_grad():
        for parameter in net.controllers.parameters():
            parameter.uniform_(-3, 3)
    found = finish.final_step_sizes(net)
    for name, dt in timestepper.step_sizes(net).items():
        assert torch.tensor(found[name]) == pytest.approx(dt.detach(), rel=1e-4)
        assert all(len(f"{value:g}") <= 8 for row in found[name] for value in row)


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
    assert made["schema"] == making.WHOLE
    assert digest({key: value for key, value in made.items() if key != "sha256"}) == made["sha256"]
    assert made["recipe"]["controller"]["kind"] == "lstm"
    assert [line["epoch"] for line in made["epochs"]] == [1, 2]
    assert made["final"]["test"]["error"] == made["final"]["folded"]["error"]
    assert made["final"]["test"]["error"] == made["epochs"][-1]["test"]["error"]
    assert made["final"]["fold_difference"] <= 1e-5
    assert [len(made["step_sizes"][stage][0]) for stage in ("layer1", "layer2", "layer3")] == [16, 32, 64]
    times = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert made["wall_seconds"] == round(sum(times), 1) > 0
    assert made["final"]["best"]["error"] == min(line["test"]["error"] for line in made["epochs"])
    assert made["data_sha256"] == open_dataset("digits").sha256
    assert {"commit", "versions", "device", "seed", "world"} <= made.keys()
    curves, summary = sorted((run.parent / "results").iterdir(), reverse=True)
    assert (summary.name, curves.name) == (records.file_name(made), summary.with_suffix(".npz").name)
    assert summary.name.startswith("smoke-digits-lstm_cifar-resnet8_lstm_")
    assert json.loads(summary.read_text())["converted_from"] == made["sha256"]


def test_a_record_s_name_says_what_was_run_and_not_how_often_it_was_saved():
    def name(*changes):
        recipe = load("smoke/digits-lstm", [*TINY, *changes])
        return records.file_name({"recipe": as_dict(recipe), "name": "a/b", "seed": recipe.run.seed})

    assert name() == name("run.checkpoint_epochs=5", "run.log_steps=3")
    assert len({name(), name("run.epochs=3"), name("optimiser.lr=0.2"), name("run.seed=1")}) == 4
    assert name("run.seed=1") == name().replace("seed0", "seed1")


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_changed_files_has_a_plus(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@y", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    def commit():
        return making.commit.__wrapped__()  # as a new process finds it

    monkeypatch.setattr(making, "__file__", str(tmp_path / "record.py"))
    monkeypatch.setenv("TIMESTEPPER_COMMIT", "from outside")
    assert commit() == "from outside"
    (tmp_path / "record.py").write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert commit() == git("rev-parse", "HEAD")
    (tmp_path / "record.py").write_text("2")
    assert commit() == git("rev-parse", "HEAD") + "+"
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))  # as a hook of another repository has it
    assert len(commit()) == 41
    monkeypatch.delenv("GIT_DIR")
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "record.py").write_text("1")  # in an environment inside somebody's checkout
    monkeypatch.setattr(making, "__file__", str(tmp_path / "installed" / "record.py"))
    assert commit() == "from outside"


def test_the_record_is_read_by_the_report(finished):
    found, problems = records.load_records(finished[0].parent / "results")
    assert problems == []
    assert found[0].name == "smoke/digits-lstm"


def test_what_is_measured_is_proposition_1_and_is_measured_once(run, tmp_path):
    stability = complete(run, tmp_path / "results", ["stability"])["stability"]
    model = restore(run).model
    bound = proposition_1(open_chain(model, torch.randn(1, 1, 8, 8)))  # which does not depend on the images
    assert stability["log_bound"] == pytest.approx([block.log for block in bound.blocks], rel=1e-6)
    assert stability["step_sizes"] == pytest.approx(
        [row.mean().item() for dt in timestepper.step_sizes(model).values() for row in dt]
    )
    content = records.read(run)
    content["stability"]["blocks"] = ["as it was"]
    records.write(with_checksum(content), run)
    assert complete(run, tmp_path / "results", ["stability"])["stability"]["blocks"] == ["as it was"]


@pytest.mark.parametrize("damage", ["edited", "[1]", "{}", '{"schema": 1', "[" * 100_000])
def test_a_record_that_is_not_as_it_was_written_gets_no_new_checksum(run, tmp_path, damage):
    path = run / "record.json"
    if damage == "edited":
        damage = path.read_text().replace('"seed": 0', '"seed": 7', 1)
    path.write_text(damage)
    for use in (lambda: complete(run, tmp_path / "results", ["stability"]), lambda: records.publish(run, tmp_path)):
        with pytest.raises(RecordError, match=r"record\.json: (changed since|not valid JSON).*remove it") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert list(tmp_path.glob("**/*.json")) == list(run.glob("**/*.json"))
    assert path.read_text() == damage


def test_a_measurement_that_is_no_number_leaves_the_record_as_it_was(run, tmp_path, monkeypatch):
    before = (run / "record.json").read_bytes()
    monkeypatch.setattr(measure, "NOISE_LEVELS", (0.0, math.inf))
    with pytest.raises(RecordError, match="noise came out as NaN or infinity; its record leaves it out"):
        measure.complete(run, tmp_path / "results", ["noise"])
    assert (run / "record.json").read_bytes() == before
    ((record,), problems) = records.load_records(tmp_path / "results")
    assert (record.noise, problems) == (None, [])


@pytest.mark.parametrize("loss", ["gone", "damaged"])
def test_only_the_weights_of_a_run_s_end_are_measured(run, tmp_path, loss):
    """Those of its beginning would stand in its record as the trained network's."""
    first, last = sorted((run / "checkpoints").iterdir())
    last.unlink() if loss == "gone" else last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=f"{first.name} is of epoch 1, .* ended with epoch 2: .* put its last"):
        complete(run, tmp_path / "results", ["noise"])
    ((record,), problems) = records.load_records(tmp_path / "results")
    assert (record.noise, problems) == (None, [])


def test_a_measurement_that_cannot_be_made_does_not_cost_the_one_before_it(run, tmp_path, monkeypatch):
    def refuse(*_):
        raise StabilityError("there is no bound")

    monkeypatch.setitem(measure._MEASURES, "stability", refuse)
    with pytest.raises(StabilityError):
        complete(run, tmp_path / "results", ["noise", "stability"])
    assert "noise" in records.read(run)
    ((record,), problems) = records.load_records(tmp_path / "results")
    assert (record.noise is None, record.stability, problems) == (False, None, [])


def test_a_run_whose_newest_checkpoint_is_of_another_has_no_record(run, tmp_path):
    with contextlib.closing(RunDirectory(tmp_path / "own")) as folder:
        steps = Process(Run(load("smoke/digits-lstm", TINY), "x", folder.path), folder, Signals()).steps()
        next(steps)
        foreign = read(run / "checkpoints/step-00000010.pt") | {"step": 99}
        torch.save(foreign, folder.checkpoints / "step-00000099.pt")
        with pytest.raises(
            CheckpointError, match=r"step-00000099\.pt is of step 99, and this run has ended at step 10"
        ):
            list(steps)
        assert not (folder.path / "record.json").exists()


def test_a_record_that_was_removed_is_made_again_from_the_last_checkpoint(run):
    before = (run / "record.json").read_bytes()
    (run / "record.json").unlink()
    assert "going on at step 10 of 10" in call("train", "smoke/digits-lstm", *TINY, "--run-dir", run)
    assert (run / "record.json").read_bytes() == before


def test_a_record_names_every_commit_that_had_a_part_in_it(run, monkeypatch):
    first = records.read(run)["commit"]
    assert records.read(run)["commits"] == {first: 10}
    monkeypatch.setattr("timestepper.records.commit", lambda: "another")
    monkeypatch.setattr(making, "commit", lambda: "another")
    call("train", "smoke/digits-lstm", *TINY, "run.epochs=3", "--run-dir", run, "--override")
    made = records.read(run)
    assert (made["commit"], made["commits"]) == ("another", {first: 10, "another": 15})


def test_what_was_computed_is_of_the_commit_that_the_process_began_with(monkeypatch):
    first = records.commit()
    monkeypatch.setattr(making, "_git", lambda *_: "a later one")
    assert records.commit() == first


def test_a_record_does_not_say_of_updates_whose_times_were_lost_that_they_were_of_this_commit(run):
    (run / "timing.jsonl").unlink()
    call("train", "smoke/digits-lstm", *TINY, "run.epochs=3", "--run-dir", run, "--override")
    assert records.read(run)["commits"] == {"unknown": 10, records.commit(): 15}


def test_a_record_names_every_device_and_no_time_of_a_gpu_where_there_were_several(run):
    made = records.read(run)
    facts = {"name": "x", "epochs": made["epochs"], "device": "NVIDIA H200", "world": 1}
    times = [{"step": 5, "seconds": 60.0, "sharing": 6, "device": made["device"]}]
    times += [{"step": 10, "seconds": 10.0, "sharing": 2, "device": "NVIDIA H200"}]
    first, second = (records.make(as_dict(load("smoke/digits-lstm", TINY)), times=times[n:], **facts) for n in (0, 1))
    assert (first["device"], "gpu_seconds" in first) == (f"{made['device']}, then NVIDIA H200", False)
    assert (second["device"], second["gpu_seconds"]) == ("NVIDIA H200", 5.0)
    assert json.loads((run / "timing.jsonl").read_text().splitlines()[0])["device"] == made["device"]


def test_a_record_says_which_part_of_a_gpu_s_time_was_its_own(run):
    made = records.read(run)
    assert "gpu_seconds" not in made  # it had none
    assert [line["sharing"] for line in map(json.loads, (run / "timing.jsonl").read_text().splitlines())] == [1, 1]
    facts = {"name": "x", "epochs": made["epochs"], "device": "NVIDIA H200"}
    times = [{"step": 5, "seconds": 60.0, "sharing": 6}, {"step": 10, "seconds": 10.0, "sharing": 2}]
    recipe = as_dict(load("smoke/digits-lstm", TINY))
    assert records.make(recipe, times=times, world=1, **facts)["gpu_seconds"] == 15.0
    assert records.make(recipe, times=times, world=4, **facts)["gpu_seconds"] == 60.0
    older = [{"step": 5, "seconds": 60.0}, *times[1:]]
    assert "gpu_seconds" not in records.make(recipe, times=older, world=1, **facts)


def test_a_half_run_has_no_record(run):
    made = json.loads((run / "record.json").read_text())
    with pytest.raises(RecordError, match="1 of 2 epochs"):
        records.make(as_dict(load("smoke/digits-lstm", TINY)), name="x", epochs=made["epochs"][:1], times=[])


def test_the_same_command_again_does_nothing(run):
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert "is finished" in call("train", "smoke/digits-lstm", *TINY, "--run-dir", run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_finished_run_still_gives_its_record(run, tmp_path):
    call("train", "smoke/digits-lstm", *TINY, "--run-dir", run, "--results", tmp_path / "results")
    assert [path.suffix for path in sorted((tmp_path / "results").iterdir())] == [".json", ".npz"]


@pytest.mark.parametrize("other", ["recipe", "data", "result"])
def test_a_record_of_another_recipe_or_of_other_data_or_of_another_run_of_it_is_not_overwritten(run, tmp_path, other):
    results, made = tmp_path / "results", records.read(run)
    records.publish(run, results)
    before = {path: path.read_bytes() for path in results.iterdir()}
    recipe = made["recipe"] | {"run": made["recipe"]["run"] | {"evaluate_epochs": 2}}
    result = {**made["final"], "train": {"loss": 0.25, "error": 0.5}}
    changed = {"recipe": {"recipe": recipe}, "data": {"data_sha256": "0" * 64}, "result": {"final": result}}[other]
    records.write(with_checksum(made | changed), run)
    for _ in range(2):
        records.publish(run, results)
        assert {path: path.read_bytes() for path in before} == before
        found, problems = records.load_records(results)
        assert len(found) == 2
        assert problems == []
    (summary,) = [path for path in before if path.suffix == ".json"]
    summary.rename(tmp_path / "removed.json")  # because the report asks for it: the other one keeps its place
    records.publish(run, results)
    assert len(records.load_records(results)[0]) == 1
    summary.write_text("{")  # a damaged one is in nobody's way
    records.write(made, run)
    records.publish(run, results)
    assert {path: path.read_bytes() for path in before} == before


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


def test_a_run_that_went_on_under_another_recipe_is_no_run_of_that_recipe(run, tmp_path):
    results, changed = tmp_path / "results", ("smoke/digits-lstm", *TINY, "run.epochs=3", "optimiser.lr=0.01")
    call("train", *changed, "--run-dir", run, "--override")
    before = (run / "record.json").read_bytes()
    (run / "record.json").unlink()
    call("train", *changed, "--run-dir", run, "--results", results)  # from its checkpoint, which knows
    assert (run / "record.json").read_bytes() == before
    (found,), _ = records.load_records(results)
    assert found.changed == "optimiser.lr 0.1 -> 0.01, run.epochs 2 -> 3 at update 10"
    assert found.subject.label == f"lstm, changed {found.changed}"
    wanted = Run(load(changed[0], changed[1:]), "x", tmp_path / "none")
    plan([wanted], [found])
    assert wanted.state == MISSING
    sweep = ("sweep", *changed, "--out", tmp_path / "runs", "--results", results)
    assert "have a record" not in call(*sweep)
    found, _ = records.load_records(results)
    assert sorted(bool(record.changed) for record in found) == [False, True]


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
    assert result.stderr == "warning: no CUDA graph: there is no CUDA device; running step by step\n"


def test_evaluate_refuses_weights_of_another_network(run):
    recipe = run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("cifar/resnet8", "cifar/resnet14"))
    with pytest.raises(CheckpointError, match=r"checkpoint is .*cifar/resnet8.*, you asked for .*cifar/resnet14"):
        call("evaluate", run, "--device", "cpu")


def test_the_difference_of_a_fold_has_no_sign():
    above, below = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    below.load_state_dict({name: value - float(name == "bias") for name, value in above.state_dict().items()})
    for pair in ((above, below), (below, above)):
        assert finish._difference(*pair, torch.ones(1, 2)) == pytest.approx(1.0)


def test_evaluate_runs_in_one_process(run, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
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
    monkeypatch.setattr("timestepper.runs.build.dataset", lambda recipe: pytest.fail("opened the data set"))
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


def test_check_data_shows_how_far_it_is_in_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the output for a terminal
    root = write_digit_folder(tmp_path, per_class=2)
    assert "100%" in CliRunner().invoke(app, ["check-data", "folder", "--root", str(root)]).stderr


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


def test_torchrun_restarts_a_run_that_lost_a_process(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text(json.dumps({"state": "failed", "hopeless": False, "error": "lost"}))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    call("train", "smoke/digits", *TINY, "run.epochs=1", "--run-dir", tmp_path / "run")
    assert json.loads((tmp_path / "run/status.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("error", [LoaderError, DistributedError])
def test_a_lost_worker_or_process_is_no_reason_to_give_up(tmp_path, monkeypatch, error):
    def lost(training):
        raise error("gone")

    monkeypatch.setattr(Training, "_end_epoch", lost)
    with pytest.raises(error, match="gone"):
        call("train", "smoke/digits", *TINY, "--run-dir", tmp_path / "run")
    status = json.loads((tmp_path / "run/status.json").read_text())
    assert (status["state"], status["hopeless"]) == ("failed", False)


def test_what_others_raise_is_told_in_one_line(tmp_path, monkeypatch):
    def full(training):
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:128] . DefaultCPUAllocator: can't allocate memory\nframe #0: main"
        )

    monkeypatch.setattr(Training, "_end_epoch", full)
    with pytest.raises(RuntimeError, match="alloc_cpu"):
        call("train", "smoke/digits", *TINY, "--run-dir", tmp_path / "run")
    told = json.loads((tmp_path / "run/status.json").read_text())["error"]
    assert told.startswith("not enough memory (")
    assert "frame" not in told


def remove(path):
    path.unlink()


def replace_by_copy(path):
    """As editors and rotating logs do."""
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole)


@pytest.mark.parametrize("spoil", [remove, replace_by_copy])
def test_a_log_or_checkpoints_that_are_gone_in_mid_run_are_written_again(spoil, tmp_path, monkeypatch):
    whole, saved = FolderJournal.save, []

    def save(journal, step, state):
        whole(journal, step, state)
        saved.append(step)
        if len(saved) == 2:
            spoil(tmp_path / "run/metrics.jsonl")
            shutil.rmtree(tmp_path / "run/checkpoints")

    arguments = ("train", "smoke/digits", *TINY, "run.checkpoint_steps=2", "--run-dir")
    call(*arguments, tmp_path / "sound")
    monkeypatch.setattr(FolderJournal, "save", save)
    call(*arguments, tmp_path / "run")
    assert len(saved) > 2
    for name in ("metrics.jsonl", "weights.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "sound" / name).read_bytes()
    assert (tmp_path / "run/record.json").exists()
