"""Two real processes train one network together: the gradients are those of one process, and so is the next step."""

import math
from pathlib import Path

import pytest
import torch
from parallel_rank import NETWORKS, WAYS, looked_at
from ranks import together
from training import batch, gradients

import timestepper


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    together(2, Path(__file__).with_name("parallel_rank.py"), folder)
    return torch.load(folder / "found.pt", weights_only=False)


@pytest.fixture(scope="module")
def alone():
    """In eval mode: no batch statistics, so two halves make the whole."""
    results, looked = {}, {}
    for name, build in NETWORKS.items():
        net = build()
        expected = gradients(net, batch()[0].double())
        torch.optim.SGD(net.parameters(), lr=0.1).step()
        results[name] = expected, net.state_dict(), net(batch()[0].double()).detach()
        looked[name] = looked_at(net, batch()[0])
    return results, looked


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", NETWORKS)
def test_two_processes_do_what_one_does(found, alone, network, way):
    gradients, state, logits = alone[0][network]
    got = found[network, way]
    assert got["gradients"].keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(got["gradients"][name], gradient, rtol=1e-9, atol=1e-12, msg=name)
    assert got["state"].keys() == state.keys()
    for name, value in state.items():
        torch.testing.assert_close(got["state"][name], value, rtol=1e-9, atol=1e-12, msg=name)
    torch.testing.assert_close(got["logits"], logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_sharded_network_folds_by_its_full_state_dict(found, alone, network):
    """A shard cannot be folded by itself, which is said by name; loaded into one network all shards can."""
    got = found[network, "FSDP blocks"]
    assert "is sharded; load its full state dict into an attached network that is not" in got["refusal"]
    assert found[network, "DDP"]["refusal"] == "nothing"
    net = NETWORKS[network]()
    net.load_state_dict(got["state"])
    with torch.no_grad():
        torch.testing.assert_close(
            timestepper.fold(net)(batch()[0].double()), alone[0][network][2], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_rank_can_look_inside(found, alone, network, way):
    """Also the callbacks of trainers, which log between two steps."""
    expected, got = alone[1][network], found[network, way]
    if "FSDP" in way:  # which forbids the copy that they are counted on
        expected = expected | {"gflops": math.nan}
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-9, equal_nan=True, msg=name)


def test_controllers_in_shards_are_not_saved(found):
    said = "the controllers of FSDPCifarResNet are sharded; load its full state dict into an attached network"
    assert said in found["resnet", "FSDP whole"]["saving"]
    assert found["resnet", "FSDP only blocks"]["saving"] == found["resnet", "DDP"]["saving"] == "nothing"


def test_folding_at_the_end_of_a_sharded_training_is_refused_before_it_begins(found):
    assert "is sharded and cannot be folded at the end; leave fold_to out" in found["resnet", "FSDP blocks"]["ahead"]


def test_the_older_fsdp_works_around_the_whole_network_and_is_refused_by_name_elsewhere(found):
    assert found["FSDP1", True, True] == "nothing"
    assert found["FSDP1", True, False].startswith("layer1.0 is wrapped in FSDP1, which hides its weights; use FSDP2")
    assert "conv1.weight is a piece of FSDP1's flat parameter; use FSDP2" in found["FSDP1", False, True]
