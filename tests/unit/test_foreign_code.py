"""A file that is only read starts no code: modules that runs and saved controllers name, and who may allow them."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import timestepper
from timestepper import controllers, names
from timestepper.cli import app
from timestepper.engine.signals import Signals
from timestepper.errors import CheckpointError, Leave, RecipeError, UnknownNameError
from timestepper.files import with_checksum
from timestepper.models import CifarResNet
from timestepper.recipe.load import dump, load, load_file
from timestepper.runs.resume import reconcile
from timestepper.runs.run import Run, default_folder
from timestepper.runs.train import Process
from timestepper.sweeps.plan import expand

MODULE = """
import pathlib
from timestepper.controllers import register
from timestepper.controllers.independent import Independent
pathlib.Path(__file__).with_name("ran").touch()
@register("mine")
class Mine(Independent): pass
class Nameless(Independent): pass
"""
OWN = ("controller.kind=mine", "controller.module=my_steps")
TINY = ("data.batch_size=256", "run.epochs=1", "run.tensorboard=false", "runtime.device=cpu")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A module that leaves a file behind when it runs; what it registers is forgotten after the test."""
    (tmp_path / "my_steps.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TIMESTEPPER_MODULES", raising=False)
    yield
    forget()


def forget():
    """As a new process would begin."""
    for table, name in ((sys.modules, "my_steps"), (controllers.KINDS, "mine"), (names.CONTROLLERS, "mine")):
        table.pop(name, None)
    controllers._UNNAMED.pop("my_steps:Nameless", None)
    Path("ran").unlink(missing_ok=True)


def ran():
    return Path("ran").exists()


def call(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def begun(path, *changes):
    """A run, as far as its recipe tells; written by hand, as a stranger would."""
    recipe = load("smoke/digits")
    settings = dict(change.removeprefix("controller.").split("=") for change in changes)
    Path(path).mkdir(parents=True)
    (Path(path) / "recipe.toml").write_text(dump(replace(recipe, controller=replace(recipe.controller, **settings))))


@pytest.mark.parametrize(
    "command", [("evaluate", "run"), ("fold", "run", "-o", "out.safetensors"), ("stability", "run")]
)
def test_a_run_that_is_read_starts_no_code(command):
    begun("run", *OWN)
    line = (
        "run/recipe.toml needs the Python module 'my_steps', and code is not run because a file asks for it; if you "
        "trust it, set TIMESTEPPER_MODULES=my_steps"
    )
    with pytest.raises(RecipeError) as refused:
        call(*command)
    assert str(refused.value) == line
    assert refused.value.exit_code == 2
    assert not ran()


def test_a_run_that_is_compared_starts_no_code(tmp_path):
    begun("runs/smoke/digits", *OWN)
    other = load("smoke/digits", ["run.seed=3"])
    assert default_folder("smoke/digits", other) == Path("runs/smoke/digits/run.seed=3")
    expand(["smoke/digits"], ["run.seed=3"], [], Path("runs"), 60.0)
    state = {"recipe": Path("runs/smoke/digits/recipe.toml").read_text(), "epochs_done": 0, "step": 0, "world": 1}
    with pytest.raises(RecipeError, match=r"another recipe: controller\.kind 'mine' -> 'none'"):
        reconcile(state, Run(other, "x", tmp_path), {}, 1000, 1, print)
    assert not ran()


def test_the_class_of_another_module_is_no_kind_of_a_recipe():
    for kind in ("my_steps:Nameless", "lstm,my_steps:Nameless"):
        Path("x.toml").write_text(f'[controller]\nkind = "{kind}"\nmodule = "json"')
        with pytest.raises(RecipeError, match=r"controller\.kind cannot be"):
            load_file(Path("x.toml"))


def test_who_trains_and_who_allows_a_module_has_it_imported(monkeypatch):
    call("train", "smoke/digits", *OWN, *TINY, "--run-dir", "run")
    assert "nothing to do" in call("train", "smoke/digits", *OWN, *TINY, "--run-dir", "run")
    assert "test error" in call("evaluate", "run")  # it is there already
    forget()
    with pytest.raises(RecipeError, match="TIMESTEPPER_MODULES=my_steps"):
        call("evaluate", "run")
    monkeypatch.setenv("TIMESTEPPER_MODULES", "json, my_steps")
    assert "test error" in call("evaluate", "run")
    forget()
    call("train", "smoke/digits", *OWN, *TINY, "run.epochs=2", "--run-dir", "run", "--override")  # goes on


def test_a_job_that_is_given_a_recipe_imports_its_module(tmp_path):
    recipe = load("smoke/digits", [*OWN, *TINY])
    forget()
    Process(Run(recipe, "x", tmp_path / "run"), None, Signals())
    assert ran()


@pytest.mark.parametrize("error", ["SystemExit: 3", "BaseException: 3", "ValueError: 3"])
def test_a_module_that_cannot_be_imported_is_one_line(error):
    Path("my_steps.py").write_text(f"raise {error.partition(':')[0]}(3)")
    with pytest.raises(RecipeError, match=rf"controller\.module 'my_steps' cannot be imported: {error}$"):
        load("smoke/digits", OWN)
    with pytest.raises(UnknownNameError, match=f"unknown controller 'my_steps:Nameless': {error}"):
        controllers.parse("my_steps:Nameless")


@pytest.mark.parametrize(("module", "is_missing"), [("no_steps", True), ("no_steps.part", True), ("my_steps", False)])
def test_only_a_module_that_is_not_found_is_looked_for(module, is_missing):
    Path("my_steps.py").write_text("import no_such_package")
    with pytest.raises(RecipeError) as told:
        load("smoke/digits", ["controller.kind=mine", f"controller.module={module}"])
    assert str(told.value).endswith("; is its folder on PYTHONPATH?") == is_missing


def test_a_signal_during_an_import_is_no_mistake_of_the_module():
    Path("my_steps.py").write_text("from timestepper.errors import Leave\nraise Leave(143)")
    with pytest.raises(Leave):
        load("smoke/digits", OWN)
    with pytest.raises(Leave):
        controllers.parse("my_steps:Nameless")


# -- saved controllers -------------------------------------------------------------------------------------------------


def test_saved_controllers_start_no_code(tmp_path, monkeypatch):
    net = timestepper.attach(CifarResNet(8, width=8), "independent")
    path = timestepper.save_controllers(net, tmp_path / "steps.safetensors")
    told = json.loads((tmp_path / "steps.json").read_text())
    told["controller"] = "my_steps:Nameless"
    (tmp_path / "steps.json").write_text(json.dumps(with_checksum(told)))
    plain = timestepper.detach(net)
    with pytest.raises(
        CheckpointError, match=r"steps\.json: needs the Python module 'my_steps', .*; import my_steps f"
    ):
        timestepper.load_controllers(plain, path)
    assert not ran()
    assert not timestepper.is_attached(plain)
    monkeypatch.setenv("TIMESTEPPER_MODULES", "my_steps")
    timestepper.detach(timestepper.load_controllers(plain, path))
    monkeypatch.delenv("TIMESTEPPER_MODULES")
    controllers._UNNAMED.clear()
    again = timestepper.load_controllers(plain, path)  # it is imported by now
    assert {type(controller).__name__ for controller in again.controllers.values()} == {"Nameless"}


@pytest.mark.parametrize("command", [("inspect",), ("stability", "--samples", 1, "--input-size", 8)])
def test_a_command_line_names_a_kind_of_a_module_that_is_allowed(command, monkeypatch):
    command = (*command, "cifar/resnet8", "--controller", "mine")
    with pytest.raises(UnknownNameError, match="unknown controller 'mine'"):
        call(*command)
    assert not ran()
    monkeypatch.setenv("TIMESTEPPER_MODULES", "my_steps")
    assert call(*command)
    assert ran()
    forget()
    monkeypatch.setenv("TIMESTEPPER_MODULES", "nowhere,")
    with pytest.raises(RecipeError, match=r"^TIMESTEPPER_MODULES 'nowhere' cannot be imported: .* on PYTHONPATH"):
        call(*command)
