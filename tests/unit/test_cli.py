"""The command line as a user meets it: what a mistake prints, and what it leaves behind."""

import sys
from pathlib import Path

import pytest
import typer.main

import timestepper
from timestepper import cli


@pytest.fixture
def call(tmp_path, monkeypatch, capfd):
    """Run a command in an empty folder; exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIMESTEPPER_DATA", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["timestepper", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
        return code, *capfd.readouterr()

    return run


def refused(answer):
    """The one line of an error, with exit code 2."""
    code, out, err = answer
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def test_fold_names_its_file_and_makes_the_folder_for_it(call, tmp_path):
    tiny = ("run.epochs=1", "run.tensorboard=false", "runtime.device=cpu")
    assert call("train", "smoke/digits-lstm", *tiny, "--run-dir", "run")[0] == 0
    assert "name a file" in refused(call("fold", "run", "-o", ""))
    assert "name a file" in refused(call("fold", "run", "-o", tmp_path))
    (tmp_path / "file").touch()
    assert "a file is in the way" in refused(call("fold", "run", "-o", "file/x.safetensors"))
    assert call("fold", "run", "-o", "a/b/x.safetensors")[0] == 0
    assert (tmp_path / "a" / "b" / "x.safetensors").exists()


@pytest.mark.parametrize("command", [("evaluate", "nosuch"), ("fold", "nosuch", "-o", "a/x.safetensors")])
def test_a_run_that_is_not_there(call, tmp_path, command):
    assert "nosuch is no run directory: there is no such folder; timestepper list shows" in refused(call(*command))
    assert list(tmp_path.iterdir()) == []


def test_verify_says_that_a_file_is_missing(call, tmp_path):
    assert "nosuch: cannot be read: No such file or directory; check its name" in refused(call("verify", "nosuch"))
    (tmp_path / "alone").touch()
    assert "alone: cannot be verified: " in refused(call("verify", "alone"))


def test_an_override_is_blamed_and_not_the_recipe(call):
    assert refused(call("train", "smoke/digits", "foo.bar=1")).startswith(
        "error: override 'foo.bar=1': foo is not known; allowed are model"
    )
    told = refused(call("train", "smoke/digits", "schedule.warmup_epochs=9"))
    assert "digits.toml with override 'schedule.warmup_epochs=9': schedule.warmup_epochs 9 is more than" in told


@pytest.mark.parametrize("name", ["table2", "paper/table2"])
def test_a_set_of_runs_is_told_from_a_recipe(call, name):
    assert "table2.toml is a set of runs and no recipe; timestepper sweep or" in refused(call("train", name))
    assert "no recipe 'table9'" in refused(call("train", "table9"))


def test_a_start_that_fails_leaves_no_folder_behind(call, tmp_path):
    assert "cifar10 not found" in refused(call("train", "paper/cifar10", "runtime.device=cpu"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar10", "imagenet", "folder"])
def test_missing_data_is_given_by_options_that_exist(call, name):
    message = refused(call("check-data", name))
    assert "(data.root=FOLDER in a recipe, --root or --data-root where a command has it)" in message


def test_a_missing_gpu_is_told_in_words_for_recipes_and_options(call, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    message = refused(call("bench", "--device", "cuda"))
    assert "choose cpu or auto (runtime.device in a recipe, --device where a command has it)" in message


def test_a_choice_that_there_is_not_is_told_plainly(call):
    told = refused(call("reproduce", "table2", "--schedule", "shorter"))
    assert "Invalid value for '--schedule': 'shorter' is not one of 'paper', 'short'" in told


@pytest.mark.parametrize("option", ["--results", "--claims"])
def test_report_refuses_a_folder_that_is_not_there(call, tmp_path, option):
    (tmp_path / "file").touch()
    (tmp_path / "results").mkdir()
    for name, reason in (("nosuch", "there is no such folder"), ("file", "is a file and not a folder")):
        assert f"{option} {name}: {reason}; name another" in refused(call("report", option, name))
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "results"]


def test_report_refuses_the_default_folder_too_where_it_is_not_there(call, tmp_path):
    assert "--results results: there is no such folder; name another" in refused(call("report"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("blocked", ["index.html", "index.md"])
def test_demo_says_that_it_cannot_write_its_page_before_it_trains(call, tmp_path, blocked):
    (tmp_path / "demo" / blocked).mkdir(parents=True)
    told = refused(call("demo"))
    assert f"cannot write {Path('demo', blocked)}: Is a directory; it is a folder, name a file" in told
    assert [item.name for item in (tmp_path / "demo").iterdir()] == [blocked]


def test_check_data_is_silent_where_there_is_no_terminal(call):
    assert call("check-data", "digits") == (0, "digits: all files are good\n", "")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("trane",), "No such command 'trane'. Did you mean 'train'?; see timestepper --help"),
        (("train", "--sed", "3"), "No such option: --sed"),
        (("evaluate",), "Missing argument 'run'; see timestepper evaluate --help"),
        (("reproduce", "table2", "--jobs", "x"), "Invalid value for '--jobs'"),
        (("inspect", "timm/resnet18", "more"), "unexpected extra argument"),
    ],
)
def test_a_mistyped_command_line_is_one_line_too(call, command, said):
    assert said in refused(call(*command))


def test_help_and_version_need_no_command(call):
    assert call("--version") == (0, f"timestepper {timestepper.__version__}\n", "")
    assert "learn their own time steps" in call()[1]
    assert call() == call("--help")


def test_every_option_is_explained(call):
    assert "--debug" in call("--help")[1]
    for name, command in typer.main.get_command(cli.app).commands.items():
        silent = [option.name for option in command.params if not option.help and not option.hidden]
        assert (name, silent) == (name, [])
