"""The commands of "From a laptop to a cluster" run as they are printed, with digits in the place of ImageNet."""

import contextlib
import functools
import os
import re
import shlex
from pathlib import Path

import pytest
import ranks
from processes import fork, run_command, run_torchrun

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
SMALL = ["data.batch_size=64", "data.test_batch_size=180", "run.epochs=1", "run.tensorboard=false"]
SMALL += ["model.name=cifar/resnet8", "runtime.compile=false", "runtime.cuda_graph=false"]


def commands() -> dict[str, list[str]]:
    """Heading of a section to the words of its first command; what follows needs a GPU."""
    text = PAGE.read_text("utf-8").partition("## Sweeps on Slurm")[0]  # that part has tests of its own
    sections = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    lines = {heading: re.findall(r"^    (.*)$", body, re.M) for heading, body in sections}
    return {heading: shlex.split(line) for heading, (line, *_) in ((h, found) for h, found in lines.items() if found)}


def small(words: list[str], folder: Path, port: int) -> list[str]:
    """The same command for digits on this machine."""
    swaps = {
        "paper/imagenet": "smoke/digits",
        "paper/cifar10": "smoke/digits",
        "8": "2",
        "FIRST:29500": f"localhost:{port}",
    }
    swaps |= {"/shared/imagenet": str(folder / "shared"), "0-2": "0,1"}
    made = [swaps.get(word, word) for word in words if not word.startswith("data.root=")]
    place = made.index("smoke/digits") + 1
    return [*made[:place], *SMALL, *made[place:]]


@pytest.mark.parametrize("section", commands())
def test_the_command_of_the_section_runs(section, tmp_path):
    words = small(commands()[section], tmp_path, ranks.free_port())
    environment = dict(word.split("=") for word in words if re.match(r"[A-Z_]+=", word))
    program, *arguments = words[len(environment) :]
    machines = 2 if "--nnodes" in arguments else 1
    if machines == 2:  # two processes are enough
        arguments[arguments.index("--nproc-per-node") + 1] = "1"
    main = {"timestepper": run_command, "torchrun": run_torchrun}[program]
    with contextlib.ExitStack() as stack:
        begin = functools.partial(fork, functools.partial(main, arguments), tmp_path, environment)
        jobs = [begin(functools.partial(os.chdir, tmp_path)) for _ in range(machines)]
        for job in jobs:
            stack.callback(job.clean)
        assert [job.wait() for job in jobs] == [0] * machines, [job.stderr for job in jobs]
    assert len(list(tmp_path.rglob("record.json"))) == (4 if "sweep" in arguments else 1)


def test_every_section_with_a_command_is_run():
    assert list(commands()) == [
        "A laptop, or a small GPU",
        "One GPU",
        "Several runs on one GPU",
        "Several GPUs",
        "Several machines",
    ]
