"""Copies: of the network, of one block, in files and in other processes. Each has its own step sizes."""

import copy
import io
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from families import FAMILIES
from torch import nn
from torch.utils.data import DataLoader, Dataset
from training import batch, fits_its_fold, gradients, plain, same, small, train

import timestepper
from timestepper.api import find_steps
from timestepper.errors import MismatchError
from timestepper.models import CifarResNet


def pickled(net: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(net))


def saved(net: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("family", ["cifar resnet20", "timm seresnet18", "densenet"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, saved])
def test_a_copy_is_the_same_network_and_a_different_one(duplicate, family):
    net = train(timestepper.attach(FAMILIES[family]()))
    twin = duplicate(net)
    assert type(twin) is type(net)
    found = find_steps(twin)
    assert found.root is twin
    assert found is not find_steps(net)
    before = gradients(net)
    assert same(gradients(twin), before)
    expected = net.eval()(batch()[0])
    train(net)
    assert torch.equal(twin.eval()(batch()[0]), expected)
    train(twin)
    assert not torch.equal(twin.eval()(batch()[0]), expected)
    assert fits_its_fold(twin)
    timestepper.attach(timestepper.detach(twin), "two_fc")
    assert fits_its_fold(net)


def test_a_copy_computes_its_step_sizes_once():
    """Its layers are given them by its own passes, and compute none by themselves."""
    twin, calls = copy.deepcopy(small()), []
    for controller in twin.controllers.values():
        controller.register_forward_hook(lambda *_: calls.append(1))
    twin(batch()[0])
    assert len(calls) == 3


def test_a_copy_made_in_the_middle_of_a_forward_is_sound():
    net, copies = small().eval(), []
    handle = net.layer2.register_forward_pre_hook(lambda *_: copies.append(copy.deepcopy(net)))
    expected = net(batch()[0])
    handle.remove()
    (twin,) = copies
    twin.layer2._forward_pre_hooks.clear()
    assert torch.equal(twin(batch()[0]), expected)
    train(twin)
    assert fits_its_fold(twin)


def test_a_copy_of_one_block_runs_with_the_step_size_it_had():
    net = small().eval()
    features = torch.randn(2, 8, 8, 8)
    expected = net.layer1[0](features)
    block = copy.deepcopy(net.layer1[0])
    assert torch.equal(block(features), expected)
    assert same(block.state_dict(), net.layer1[0].state_dict())
    train(net)
    assert torch.equal(block(features), expected)


def test_a_copy_of_a_block_put_into_the_network_does_not_fold():
    """It has the step sizes of a network that nobody trains."""
    net = small()
    net.layer1.append(copy.deepcopy(net.layer1[0]))
    with pytest.raises(MismatchError, match=r"layer1\.1\.bn2 is a copy from another attached network .*; detach"):
        timestepper.fold(net)
    model = timestepper.detach(small())
    model.layer1.append(copy.deepcopy(model.layer1[0]))
    assert fits_its_fold(timestepper.attach(model))


def test_a_state_dict_saves_and_loads_without_pickle():
    net = small().eval()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    twin = timestepper.attach(plain()).eval()
    twin.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(net(batch()[0]), twin(batch()[0]))


def _answer(net: nn.Module) -> tuple:
    torch.set_num_threads(1)
    return net.eval()(batch()[0]).tolist(), {k: v.tolist() for k, v in timestepper.step_sizes(net).items()}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_another_process_computes_the_same(method):
    net = small().eval()
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        logits, sizes = pool.submit(_answer, net).result(timeout=300)
    assert torch.equal(torch.tensor(logits), net(batch()[0]))
    assert sizes == {stage: dt.tolist() for stage, dt in timestepper.step_sizes(net).items()}


class Extracted(Dataset):
    """A data set that runs a network in its loader's workers."""

    def __init__(self, net: nn.Module):
        self.net = net

    def __len__(self) -> int:
        return 4

    @torch.no_grad()
    def __getitem__(self, index: int):
        return self.net(batch()[0][index : index + 1])[0]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_workers_of_a_loader_run_the_network(method):
    net = small().eval()
    net(batch()[0]).sum().backward()  # a pass that is over leaves nothing that a worker could trip over
    loader = DataLoader(Extracted(net), batch_size=2, num_workers=1, multiprocessing_context=method)
    found = torch.cat(list(loader))
    torch.testing.assert_close(found, net(batch()[0]))


class Twice(nn.Module):
    """One layer under two names: both are keys of its state dict."""

    def __init__(self):
        super().__init__()
        self.body = CifarResNet(8, num_classes=5, width=8)
        self.head = self.also_head = nn.Linear(5, 5)
        self.register_module("unused", None)

    def forward(self, x):
        return self.also_head(torch.relu(self.head(self.body(x))))


def test_a_part_with_two_names_keeps_both_keys():
    model = Twice()
    keys = list(model.state_dict())
    net = timestepper.attach(model)
    assert [key for key in net.state_dict() if not key.startswith("controllers.")] == keys
    net.load_state_dict(net.state_dict(), strict=True)
    assert fits_its_fold(net)
    assert list(timestepper.fold(net).state_dict()) == keys
