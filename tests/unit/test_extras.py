"""The library needs torch, numpy and safetensors; what else is missing is named with the command that installs it."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from timestepper.errors import _EXTRAS

ROOT = Path(__file__).parents[2]
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({missing}))\n"
IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn"}


def run(missing, program):
    code = WITHOUT.format(missing=list(missing)) + program
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_every_optional_package_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = {
        IMPORTED_AS.get(name, name): extra
        for extra in ("train", "report", "cluster")
        for name in (line.partition(">=")[0] for line in extras[extra])
    }
    assert found == _EXTRAS
    assert extras["all"] == ["timestepper[train,report,cluster]"]


def test_the_tested_versions_are_written_down_and_allowed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lock)}
    for wanted in map(Requirement, lines):
        assert wanted.name == "timestepper" or wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), wanted


def test_the_library_works_without_all_of_them(tmp_path):
    done = run(
        _EXTRAS,
        "import torch, timestepper\n"
        "from timestepper.models.cifar_resnet import CifarResNet\n"
        "net = timestepper.attach(CifarResNet(8), controller='lstm').eval()\n"
        f"timestepper.save_folded(net, {str(tmp_path / 'x.safetensors')!r})\n"
        "print(torch.equal(net(torch.zeros(1, 3, 32, 32)), timestepper.fold(net).eval()(torch.zeros(1, 3, 32, 32))))\n",
    )
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("typer", [], "train"),
        ("typer", ["--version"], "train"),
        ("rich", ["list", "."], "train"),
        ("timm", ["inspect", "timm/resnet18"], "train"),
        ("sklearn", ["check-data", "digits"], "train"),
        ("jinja2", ["report"], "report"),
        ("scipy", ["stability", "figure1"], "report"),
        ("scipy", ["reproduce", "fig1"], "report"),
        ("submitit", ["sweep", "smoke/digits", "--cluster", "local"], "cluster"),
    ],
)
def test_a_missing_package_is_named_with_what_installs_it(package, arguments, extra, tmp_path):
    program = f"from timestepper.__main__ import main\nsys.argv = ['timestepper', *{arguments!r}]\n"
    program += f"import os; os.makedirs({str(tmp_path / 'results')!r}); os.chdir({str(tmp_path)!r})\nmain()"
    done = run([package], program)
    expected = f"error: this needs {package}, which is not installed: pip install 'timestepper[{extra}]'\n"
    assert done.stderr.endswith(expected)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize(("package", "name"), [("sklearn", "digits"), ("PIL", "cifar10")])
def test_a_data_set_says_what_installs_the_package_that_it_misses(package, name, tmp_path):
    done = run([package], f"from timestepper import data\ndata.open_dataset({name!r}, {str(tmp_path)!r})")
    said = done.stderr.splitlines()[-1]
    told = f"this needs {package}, which is not installed: pip install 'timestepper[train]'"
    assert said == f"timestepper.errors.MissingPackageError: {told}"


def test_a_wheel_out_of_the_sdist_holds_all_that_is_no_code(tmp_path):
    pytest.importorskip("setuptools", "77", reason="pyproject.toml asks for a newer setuptools")
    source = tmp_path / "source"
    for folder in ("src", "recipes", "claims"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for file in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    sdist = build("sdist", source, tmp_path)
    shutil.unpack_archive(sdist, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    found = set(zipfile.ZipFile(build("wheel", unpacked, tmp_path)).namelist())
    package = source / "src" / "timestepper"
    wanted = {f"timestepper/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    wanted |= {f"timestepper/{path.relative_to(source)}" for path in source.rglob("*/*.toml")}
    assert {name for name in found if name.startswith("timestepper/")} == wanted


def build(kind, source, folder):
    """As pip builds it, but with the setuptools that is here."""
    program = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]
