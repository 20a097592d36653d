"""The stability command in two processes with gloo, as torchrun starts them, against the same command in one."""

import json

import pytest
from processes import ranks

from timestepper.tensors import write_tensors

COMMAND = ("stability", "cifar/resnet8", "--data", "digits", "--device", "cpu", "--json")


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


@pytest.fixture
def two(tmp_path, unused_port):
    """What each of two processes prints."""

    def call(*arguments):
        with ranks([*COMMAND, *map(str, arguments)], tmp_path, unused_port) as jobs:
            assert [job.wait() for job in jobs] == [0, 0], jobs[0].stderr + jobs[1].stderr
            return [job.stdout for job in jobs]

    return call


@pytest.mark.parametrize(
    ("figures", "images", "count"),
    [(["--noise"], 360, 6 * 5), (["--noise", "--attacks", "--corruptions"], 33, 6 * 5 + 2 * 4 + 6 * 5)],
)
def test_two_processes_give_the_table_of_one(weights, figures, images, count, cli, two):
    """360 images are two batches of 250, the second with empty slots; 33 cannot be shared equally."""
    arguments = ("--no-theory", *figures, "--weights", weights, "--images", images)
    alone = cli(*COMMAND, *map(str, arguments)).out
    first, second = two(*arguments)
    assert second == ""  # one table, not two
    one, two = (scores(json.loads(output)) for output in (alone, first))
    assert len(one) == len(two) == count
    assert {score["samples"] for score in two} == {images}
    assert len({score["error"] for score in one}) > 5
    for mine, theirs in zip(one, two, strict=True):
        assert theirs["error"] == mine["error"]
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)


def test_the_theory_is_shown_once(weights, two):
    first, second = two("--weights", weights, "--samples", 2)
    assert len(json.loads(first)["blocks"]) == 3
    assert second == ""
