"""The commands of "From a laptop to a cluster" run as they are printed, with digits in the place of ImageNet."""

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from processes import fork, run_command, run_torchrun

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SITTINGS = "A study in short sittings"
SMALL = ["data.batch_size=64", "data.test_batch_size=180", "run.epochs=1", "run.tensorboard=false"]
SMALL += ["model.name=cifar/resnet8", "runtime.compile=false", "runtime.cuda_graph=false"]


def printed() -> dict[str, list[str]]:
    """Heading of a section to its commands."""
    text = PAGE.read_text("utf-8").partition("## Sweeps on Slurm")[0]  # that part has tests of its own
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    lines = {heading: re.findall(r"^    (.*)$", body, re.M) for heading, body in sections}
    return {heading: found for heading, found in lines.items() if found}


def commands() -> dict[str, list[list[str]]]:
    """The same, each command as its words."""
    return {heading: [shlex.split(line, comments=True) for line in found] for heading, found in printed().items()}


def small(words: list[str], folder: Path, port: int) -> list[str]:
    """The same command for digits on this machine."""
    swaps = {
        "paper/imagenet": "smoke/digits",
        "paper/cifar10": "smoke/digits",
        "8": "2",
        "FIRST:29500": f"localhost:{port}",
    }
    swaps |= {"/shared/imagenet": str(folder / "shared"), "0-2": "0,1", "0-5": "0,1"}
    made = [swaps.get(word, word) for word in words if not word.startswith("data.root=")]
    place = made.index("smoke/digits") + 1
    return [*made[:place], *SMALL, *made[place:]]


@pytest.mark.parametrize("section", [section for section in commands() if section != SITTINGS])
def test_the_first_command_of_the_section_runs(section, tmp_path):
    words = small(commands()[section][0], tmp_path, ranks.free_port())
    environment = dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(environment) :]
    machines = 2 if "--nnodes" in arguments else 1
    if machines == 2:  # two processes are enough
        arguments[arguments.index("--nproc-per-node") + 1] = "1"
    main = {"timestepper": run_command, "torchrun": run_torchrun}[program]
    run_side_by_side([functools.partial(main, arguments)] * machines, tmp_path, environment)
    assert len(list(tmp_path.rglob("record.json"))) == (4 if "sweep" in arguments else 1)


def test_two_sweeps_share_a_gpu_as_the_page_says(tmp_path):
    """All but the control of MPS, which is NVIDIA's."""
    _, control, *lines = commands()["Several runs on one GPU"]
    assert control[0] == "nvidia-cuda-mps-control"
    environment = dict(line[1].split("=") for line in lines if line[0] == "export")
    sweeps = [small(line, tmp_path, 0)[1:-1] for line in lines if line[-1] == "&"]
    assert len(sweeps) == int(environment["TIMESTEPPER_GPU_PROCESSES"]) == 2
    run_side_by_side([functools.partial(run_command, arguments) for arguments in sweeps], tmp_path, environment)
    assert len(list((tmp_path / "results").glob("*.json"))) == 4


SET = """
set = "mini"
title = "Digits"
seeds = [0, 1]
measure = ["noise"]

[[train]]
base = "smoke/digits"
overrides = ["run.epochs=1", "data.batch_size=256", "run.tensorboard=false"]
hours = 0.01
"""


@pytest.mark.skipif(shutil.which("timeout") is None or shutil.which("split") is None, reason="needs GNU's coreutils")
def test_a_study_goes_on_in_another_folder_as_the_page_says(tmp_path):
    """The first sitting has trained and not measured."""
    program = tmp_path / "timestepper"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m timestepper "$@"\n')
    program.chmod(0o755)
    swaps = {"ablation56 seeds": "mini.toml", "data.root=/data ": "", "=cuda": "=cpu", "--processes 5": "--processes 2"}
    lines = printed()[SITTINGS]
    for there, here in swaps.items():
        assert any(there in line for line in lines)
        lines = [line.replace(there, here) for line in lines]
    unpack, sweep, pack = lines
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mini.toml").write_text(SET)

    def shell(folder: str, line: str) -> str:
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        command = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(
            command, cwd=tmp_path / folder, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shell("first", sweep.replace(" --measure", ""))
    shell("first", pack)
    for piece in (tmp_path / "first").glob("sitting.tar.*"):
        piece.rename(tmp_path / "second" / piece.name)
    shell("second", unpack)
    assert shell("second", sweep).count(": measured") == 2
    records = list((tmp_path / "second/results").glob("*.json"))
    assert [bool(json.loads(path.read_text()).get("noise")) for path in records] == [True, True]


def run_side_by_side(mains: list, folder: Path, environment: dict[str, str]) -> None:
    with contextlib.ExitStack() as stack:
        jobs = [fork(main, folder, environment, functools.partial(os.chdir, folder)) for main in mains]
        for job in jobs:
            stack.callback(job.clean)
        assert [job.wait() for job in jobs] == [0] * len(jobs), [job.stderr for job in jobs]


def test_every_section_with_a_command_is_run():
    assert list(commands()) == [
        "A laptop, or a small GPU",
        "One GPU",
        "Several runs on one GPU",
        SITTINGS,
        "Several GPUs",
        "Several machines",
    ]
