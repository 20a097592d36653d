"""Nothing is kept between two calls unless the user asks, and then until the user says so."""

import copy
import warnings

import pytest
import timm
import torch
from families import FAMILIES
from training import batch, fits_its_fold, gradients, plain, same, small, train

import timestepper
from timestepper.errors import NotAttachedError


def average_through_data(net):
    for parameter, other in zip(net.parameters(), train(copy.deepcopy(net)).parameters(), strict=True):
        parameter.data.mul_(0.9).add_(other.data, alpha=0.1)  # moves no version counter


def load(net):
    net.load_state_dict(train(copy.deepcopy(net)).state_dict())


def in_inference_mode(net):
    with torch.inference_mode():
        for parameter in net.parameters():
            parameter.mul_(1.1)


def replaced_data(net):
    net.to(torch.float64).to(torch.float32)
    for parameter in net.parameters():
        parameter.data = parameter.data * 0.9


CHANGES = [average_through_data, load, in_inference_mode, replaced_data, train]


@pytest.mark.parametrize("change", CHANGES)
def test_logits_are_always_those_of_the_fold(change):
    net = small()
    images, _ = batch()
    with torch.no_grad():
        before = net.eval()(images)
    assert fits_its_fold(net)
    change(net)
    assert fits_its_fold(net)
    with torch.inference_mode():
        assert torch.equal(net(images), timestepper.fold(net)(images))
        assert not torch.equal(net(images), before)


def test_frozen_steps_are_computed_once_and_thawed_again():
    net = small().eval()
    images, _ = batch()
    with torch.no_grad():
        expected = net(images)
        with timestepper.frozen_steps(net) as inside:
            assert inside is net
            assert torch.equal(net(images), expected)
            assert torch.equal(net(images), timestepper.fold(net)(images))
            for parameter in net.controllers.parameters():
                parameter.add_(1.0)
            assert torch.equal(net(images), expected)  # as asked
        assert not torch.equal(net(images), expected)
    assert fits_its_fold(net)


def test_frozen_steps_end_with_an_error_and_may_be_nested():
    net = small().eval()
    with timestepper.frozen_steps(net), timestepper.frozen_steps(net):
        net(batch()[0])
    with pytest.raises(RuntimeError, match="channels"), timestepper.frozen_steps(net):
        net(torch.zeros(1, 2, 8, 8))
    train(net)
    assert fits_its_fold(net)


@pytest.mark.parametrize("family", ["timm seresnet18", "densenet"])
def test_frozen_steps_reach_parts_gates_and_convolutions(family):
    net = train(timestepper.attach(FAMILIES[family]())).eval()
    images, _ = batch()
    with torch.no_grad():
        expected = net(images)
        with timestepper.frozen_steps(net):
            assert torch.equal(net(images), expected)
            if family.startswith("timm"):
                assert torch.equal(net.forward_head(net.forward_features(images)), expected)


def test_frozen_batch_norms_take_the_weight_that_they_have():
    """Their weights are buffers, which a user may still set."""
    net = train(timestepper.attach(FAMILIES["timm resnet18"]()))
    timm.utils.freeze(net, ["layer1"])
    assert fits_its_fold(net)
    net.layer1[0].bn2.weight.mul_(2.0)
    assert fits_its_fold(net)


def test_a_network_trains_after_frozen_steps_as_if_nothing_had_been():
    net = small()
    expected = gradients(small())
    with timestepper.frozen_steps(net), torch.no_grad():
        copy.deepcopy(net).eval()(batch()[0])
    assert same(gradients(net), expected)


def test_two_that_overlap_may_be_left_in_any_order():
    net, expected = small(), gradients(small())
    first, second = timestepper.frozen_steps(net), timestepper.frozen_steps(net)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    net(batch()[0]).sum().backward()
    assert all(parameter.grad is None for parameter in timestepper.controller_parameters(net))  # still frozen
    second.__exit__(None, None, None)
    net.load_state_dict(small().state_dict())  # that forward moved its running statistics
    assert same(gradients(net), expected)


def test_frozen_steps_of_a_plain_network_are_refused():
    with pytest.raises(NotAttachedError, match="CifarResNet has no controllers"), timestepper.frozen_steps(plain()):
        pass


def test_a_copy_made_inside_is_not_frozen():
    net = small().eval()
    with timestepper.frozen_steps(net):
        other = copy.deepcopy(net)
    average_through_data(other)
    fresh = timestepper.attach(plain()).eval()
    fresh.load_state_dict(other.state_dict())
    assert torch.equal(other.eval()(batch()[0]), fresh(batch()[0]))


def test_who_would_train_inside_is_warned():
    net = small()
    words = "CifarResNet is in train mode: inside frozen_steps no gradient"
    with pytest.warns(UserWarning, match=words) as told, timestepper.frozen_steps(net.train()):
        pass
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with timestepper.frozen_steps(net.eval()):
            pass
        with torch.no_grad(), timestepper.frozen_steps(net.train()):
            pass
