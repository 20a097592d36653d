"""Whatever goes wrong is one line; nothing that is shown steers the terminal; odd states of a run folder: T36, T38."""

import errno
import functools
import os
import resource
import shutil
from pathlib import Path

import pytest
import runs
import torch
from outcomes import Outcome, message_of
from processes import command, limit_file_size
from stopping import drive
from watching import wait_for

SHORT = [*runs.SHORT, "run.epochs=1"]
DIGITS_OF_5000 = "9" * 5000
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("words") / "run"
    assert drive(runs.train(run, recipe=SHORT)) is None
    return run


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "nested.toml"], "nested.toml: not valid TOML"),
        (["train", "digits.toml"], "digits.toml: not valid TOML"),
        (["train", "smoke/digits", f"run.seed={DIGITS_OF_5000}"], "run.seed must be a whole number"),
        (["train", "smoke/digits", f"run.seed=0x{DIGITS_OF_5000}"], "run.seed cannot be something endless"),
        (["train", "smoke/digits", f"optimiser.lr={DIGITS_OF_5000[:400]}"], "optimiser.lr must be a number"),
        (["train", "smoke/digits", f"run.seed={'[' * 5000}"], "run.seed must be a whole number"),
        (["train", "smoke/digits", f"run.epochs={10**26}"], "run.epochs cannot be 1000"),
        (["train", "a" * 300], "no recipe 'aaa"),
        (["train", "a\0b"], "no recipe 'a\\x00b'"),
        (["reproduce", "a" * 300], "a" * 300),
        (["sweep", "a" * 300], "no recipe 'aaa"),
        (["evaluate", "a" * 300], "is no run directory"),
        (["fold", "a" * 300, "-o", "x"], "is no run directory"),
        (["train", "smoke/digits", "--run-dir", "a" * 300], "File name too long"),
        (["train", "smoke/digits", "model.name=cifar/resnet60002"], "have at most 10000 layers"),
        (["train", "smoke/digits", f"model.name=cifar/resnet{DIGITS_OF_5000[:50]}"], "have at most 10000 layers"),
        (["train", "smoke/digits", "model.name=cifar/densenet9997"], "have at most 1000 layers"),
        (["inspect", "cifar/nf_resnet60002"], "have at most 10000 layers"),
        (["fold", "RUN", "-o", "/dev/null"], "it is a device or a pipe"),
        (["evaluate", "\x1b[31mred\r\nline"], "\\x1b[31mred\\r\\nline is no run directory"),
    ],
)
def test_t36_a_mistake_is_one_line_and_changes_nothing(arguments, told, tmp_path, monkeypatch, cli, finished):
    (tmp_path / "nested.toml").write_text(f"[run]\nseed = {'[' * 5000}")
    (tmp_path / "digits.toml").write_text(f"[run]\nseed = {DIGITS_OF_5000}")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    outcome = cli(*(str(finished) if argument == "RUN" else argument for argument in arguments))
    assert told in outcome.refused()
    assert len(outcome.err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({**LAUNCHED, "RANK": "x"}, "RANK='x'"),
        ({**LAUNCHED, "WORLD_SIZE": "0"}, "WORLD_SIZE='0'"),
        ({**LAUNCHED, "RANK": "2", "WORLD_SIZE": "2"}, "RANK='2'"),
        ({**LAUNCHED, "LOCAL_RANK": "-1"}, "LOCAL_RANK='-1'"),
        ({**LAUNCHED, "MASTER_PORT": "abc"}, "MASTER_PORT='abc'"),
        ({**LAUNCHED, "MASTER_PORT": "99999"}, "MASTER_PORT='99999'"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "but not MASTER_ADDR, MASTER_PORT; start it with torchrun, or unset them"),
        ({"RANK": "0"}, "has RANK as under torchrun, but not WORLD_SIZE, MASTER_ADDR, MASTER_PORT"),
        ({"WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "but not RANK"),
    ],
)
def test_t36_an_environment_that_no_launcher_makes(changes, told, tmp_path):
    with command(runs.train(tmp_path / "run", recipe=SHORT), tmp_path, env=changes) as job:
        assert job.wait() == 2, job.stderr
        assert told in message_of(job.stderr)
    assert not (tmp_path / "run").exists()


def test_t36_an_address_that_a_cluster_sets_for_everybody_is_nobody_s_concern(tmp_path):
    alone = {name: value for name, value in LAUNCHED.items() if name.startswith("MASTER")}
    with command(runs.train(tmp_path / "run", recipe=SHORT), tmp_path, env=alone) as job:
        assert job.wait() == 0, job.stderr


def removed_folder(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


@pytest.mark.parametrize("arguments", [["list"], ["verify", "x"], ["inspect", "cifar/resnet8"]])
def test_t36_a_working_folder_that_was_removed(arguments, tmp_path):
    with command(arguments, tmp_path, prepare=functools.partial(removed_folder, tmp_path / "gone")) as job:
        assert job.wait() == 2, job.stderr
        assert message_of(job.stderr) == "the folder that you are in was removed; cd somewhere else"


def spoil_model(state: dict) -> str:
    name = sorted(state["model"])[0]
    state["model"][name] = torch.zeros(1, 2, 3)
    return f"{name} is (1, 2, 3) in the checkpoint"


def lose_tensor(state: dict) -> str:
    name = sorted(state["model"])[0]
    del state["model"][name]
    return f"{name} is missing in the checkpoint"


def spoil_momentum(state: dict) -> str:
    state["momentum"][0] = torch.zeros(1)
    return "its momentum has other shapes"


@pytest.mark.parametrize("spoil", [spoil_model, lose_tensor, spoil_momentum])
def test_t36_a_sound_archive_with_wrong_fields(spoil, tmp_path, finished, cli):
    run = runs.copy(finished, tmp_path / "run")
    (run / "status.json").unlink()  # else it is finished, and nobody reads it
    path = runs.checkpoints(run)[-1]
    for older in runs.checkpoints(run)[:-1]:
        older.unlink()
    state = runs.newest(run)
    told = spoil(state)
    torch.save(state, path)
    assert told in cli(*runs.train(run, recipe=SHORT)).refused()
    if spoil is not spoil_momentum:
        assert told in cli("evaluate", str(run)).refused()


def no_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**23, used + 2**23))


def few_bytes() -> None:
    limit_file_size(500)


@pytest.mark.parametrize(("limit", "told"), [(no_memory, ""), (few_bytes, "No space left for ")])
def test_t36_limits_of_the_machine_are_one_line(limit, told, tmp_path):
    arguments = runs.train(tmp_path / "run", "run.tensorboard=true", recipe=SHORT)
    with command(arguments, tmp_path, prepare=limit) as job:
        assert job.wait() == 1, job.stderr
        assert told in message_of(job.stderr)


def test_t36_a_run_folder_removed_in_mid_run(tmp_path, finished):
    run = tmp_path / "run"
    with command(runs.train(run, "run.epochs=1000", "run.checkpoint_steps=1"), tmp_path) as job:
        wait_for(lambda: runs.at_step(run, 2) or job.poll() is not None)
        run.rename(tmp_path / "elsewhere")
        shutil.copytree(finished, run)  # another one takes its place
        assert job.wait() == 2, job.stderr
        assert message_of(job.stderr).startswith(f"{run} was moved or removed while it was trained; nothing more")
    assert runs.differing(run, finished) == []


def test_t36_tensorboard_s_folder_removed_in_mid_run(tmp_path):
    run = tmp_path / "run"
    changes = ("run.epochs=1000", "run.checkpoint_steps=1", "run.log_steps=1", "run.tensorboard=true")
    with command(runs.train(run, *changes), tmp_path) as job:
        wait_for(lambda: runs.at_step(run, 2) or job.poll() is not None)
        # Again where a file was just being made in it.
        wait_for(lambda: shutil.rmtree(run / "tensorboard", ignore_errors=True) or not (run / "tensorboard").exists())
        assert job.wait() == 2, job.stderr
        assert (
            message_of(job.stderr)
            == f"{run}/tensorboard was removed while it was written; the same command goes on and writes it anew"
        )


def test_t36_an_ascii_terminal_and_a_name_that_is_not(tmp_path):
    arguments = runs.train(tmp_path / "rön\udcff\x1b[31m", recipe=SHORT)
    with command(arguments, tmp_path) as job:
        assert job.wait() == 0, job.stderr
        assert "rön\\udcff\\x1b[31m" in job.stdout
    assert "\x1b" not in job.stdout + job.stderr


# -- odd states ------------------------------------------------------------------------------------------------------


def test_t38_escape_codes_in_names_are_spelled_out_everywhere(tmp_path, finished, image_folder, cli):
    name = "\x1b]0;title\x07red"
    run = runs.copy(finished, tmp_path / name)
    bad = tmp_path / "data" / "root" / "train" / "3" / f"{name}.png"
    shutil.copytree(image_folder, tmp_path / "data" / "root")
    bad.write_bytes(b"")
    outcomes: list[Outcome] = [
        cli("list", str(tmp_path)),
        cli("evaluate", str(run)),
        cli("check-data", "folder", "--root", str(tmp_path / "data" / "root")),
        cli("verify", str(run / "weights.safetensors")),
        cli("train", str(run / "none.toml")),
        cli("report", "--results", str(run), "--out", str(tmp_path / "x.html")),
    ]
    for outcome in outcomes:
        assert "\\x1b]0;title\\x07red" in "".join((outcome.out + outcome.err).split())
        assert "\x1b" not in outcome.out + outcome.err
        assert "\x07" not in outcome.out + outcome.err


@pytest.mark.parametrize("option", ["pretrained=True", "checkpoint_path=x", "num_classes=3"])
def test_a_run_whose_recipe_would_load_a_file_is_refused(option, tmp_path, finished, cli):
    run = runs.copy(finished, tmp_path / "run")
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace('options = ""', f'options = "{option}"'))
    state = runs.newest(run)
    state["identity"]["options"] = option  # else it is refused as the checkpoint of another network
    torch.save(state, runs.checkpoints(run)[-1])
    for arguments in (["evaluate", str(run)], ["fold", str(run), "-o", str(tmp_path / "x")]):
        assert cli(*arguments).refused().startswith("model.options cannot hold " + option.partition("=")[0])


def test_a_finished_run_that_lost_its_status_is_shown_and_finished_again(tmp_path, finished, cli):
    run = runs.copy(finished, tmp_path / "run")
    (run / "status.json").unlink()
    assert "no status" in cli("list", str(tmp_path)).out
    outcome = cli(*runs.train(run, recipe=SHORT))
    assert outcome.code == 0, outcome.err
    assert runs.state_of(run) == "finished"
    assert runs.differing(run, finished) == []


@pytest.mark.parametrize("columns", ["20", "60", "200"])
def test_a_list_shows_names_however_narrow_the_terminal(columns, tmp_path, finished, cli, monkeypatch):
    runs.copy(finished, tmp_path / "a-[/]name-of-a-run")
    monkeypatch.setenv("COLUMNS", columns)
    output = cli("list", str(tmp_path)).out
    assert "a-[/]name-of-a-run" in output
    assert "…" not in output


def test_an_unexpected_error_is_one_line_and_debug_shows_it_all(tmp_path, monkeypatch, cli):
    """A bug of ours or of a library's: here a recipe's folder that cannot be listed by any means."""
    monkeypatch.setattr("timestepper.recipe.load.find", lambda _: 1 / 0)
    message = cli("train", "smoke/digits").refused(1)
    assert message == "ZeroDivisionError: division by zero; --debug shows where it comes from"
    shown = cli("train", "smoke/digits", "--debug")
    assert shown.code == 1
    assert "Traceback (most recent call last)" in shown.err
    assert shown.err.count("ZeroDivisionError: division by zero") == 2


class OddError(BaseException):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit("bye"), "SystemExit: bye"),
        (OddError(), "OddError: OddError"),
        (BrokenPipeError(errno.EPIPE, "gone"), "BrokenPipeError: [Errno 32] gone"),
    ],
)
def test_foreign_code_that_leaves_or_has_no_words_is_one_line(error, told, monkeypatch, cli):
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr("timestepper.recipe.load.find", fail)
    assert cli("train", "smoke/digits").refused(1) == f"{told}; --debug shows where it comes from"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has 1 MiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes"),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_an_end_of_memory_is_told_in_words(error, monkeypatch, cli):
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr("timestepper.recipe.load.find", fail)
    told = cli("train", "smoke/digits").refused(1)
    assert told.startswith("not enough memory (")
    assert "); use a smaller batch or network, or another machine; --debug" in told


def test_planted_links_at_locks(tmp_path, cli):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    os.symlink(tmp_path / "precious", tmp_path / "run" / "run.lock")
    assert "remove that link" in cli(*runs.train(tmp_path / "run", recipe=SHORT)).refused()
    assert (tmp_path / "precious").read_text() == "mine"
