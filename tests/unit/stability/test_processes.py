"""The stability command in two processes with gloo, as torchrun starts them, against the same command in one."""

import json
import subprocess
import sys

import pytest
from ranks import together

from timestepper.saving import write_tensors

COMMAND = ("-m", "timestepper", "stability", "cifar/resnet8", "--data", "digits", "--device", "cpu", "--json")
FIGURES = ("--no-theory", "--noise", "--attacks", "--corruptions")


def scores(node):
    """Every score of a table, in order."""
    if isinstance(node, dict) and "samples" in node:
        return [node]
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return [score for child in children for score in scores(child)]


@pytest.fixture(scope="module")
def weights(resnet8, tmp_path_factory):
    """Of a network that was trained: an untrained one errs on everything, whatever the noise."""
    return write_tensors(resnet8.state_dict(), tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.mark.parametrize("images", [(), ("--images", "33")], ids=["all", "33"])
def test_two_processes_give_the_table_of_one(weights, images):
    """360 images are two batches of 250, the second with empty slots; 33 cannot be shared equally."""
    arguments = (*FIGURES, "--weights", weights, *images)
    line = [sys.executable, *COMMAND, *map(str, arguments)]
    alone = subprocess.run(line, capture_output=True, text=True, check=True, timeout=300).stdout
    first, second = together(2, *COMMAND, *arguments)
    assert second == ""  # one table, not two
    one, two = (scores(json.loads(output)) for output in (alone, first))
    assert len(one) == len(two) == 6 * 5 + 2 * 4 + 6 * 5
    assert {score["samples"] for score in two} == {360 if not images else 33}
    assert len({score["error"] for score in one}) > 5
    for mine, theirs in zip(one, two, strict=True):
        assert theirs["error"] == mine["error"]
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)


def test_the_theory_is_shown_once(weights):
    first, second = together(2, *COMMAND, "--weights", weights, "--samples", 2)
    assert len(json.loads(first)["blocks"]) == 3
    assert second == ""
