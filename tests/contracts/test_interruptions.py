"""An exception at any moment of a forward leaves the network as it was, and nothing for the next call to trip over."""

import copy
import itertools
import linecache
import random
import signal
import sys

import pytest
import torch
from torch import nn
from training import batch, bits, fits_its_fold, gradients, plain, same, small

import timestepper
from timestepper.controllers.independent import Independent
from timestepper.looking import here
from timestepper.models import CifarResNet
from timestepper.steps import find

IMAGES = batch(size=1, pixels=8)[0]


class Interrupted(BaseException):
    """What Ctrl-C is: no Exception."""


class Failed(Exception):
    """What everything else is."""


@pytest.fixture
def quiet():
    """A network whose train mode changes no statistics: then no bit of its state dict may ever differ."""
    net = small()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 0.0
    return net


def state(net):
    return {name: value for name, value in bits(net).items() if not name.endswith("num_batches_tracked")}


def parts(net):
    """Ways into a network, in both modes, with and without gradients."""
    features = torch.ones(1, 8, 4, 4)

    def backward():
        net.train()(torch.cat([IMAGES, IMAGES + 1])).sum().backward()

    def evaluate():
        with torch.no_grad():
            net.eval()(IMAGES)

    return [backward, evaluate, lambda: net.eval()(IMAGES), lambda: net.eval().layer1(features)]


def strike(moments: random.Random, error: type[BaseException], call, longest: float) -> bool:
    """Raise somewhere inside a call, from a signal handler as Ctrl-C does; whether it was still running."""
    armed = [True]

    def handler(number, frame):
        if armed:
            armed.clear()
            raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, longest))
        call()
        armed.clear()
        return False
    except error:
        return True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        torch.set_grad_enabled(True)  # torch's own no_grad is left on where its end is hit


def struck(net, count: int) -> int:
    """How often an exception hit a forward, of so many tries; the network is looked at after each."""
    expected, moments, hits = state(net), random.Random(0), 0
    with torch.no_grad():
        logits, features = net.eval()(IMAGES), net.layer1(torch.ones(1, 8, 4, 4))
    longest = 4e-3
    for number in range(count):
        error = (Interrupted, Failed)[number % 2]
        hit = strike(moments, error, parts(net)[number // 2 % 4], longest)
        longest = longest * 0.95 if not hit else longest * 1.05  # about half of them, whatever the machine
        hits += hit
        assert same(state(net), expected)
        with torch.no_grad():
            # A part first: a pass of the whole network would sweep away what is left over.
            assert torch.equal(net.eval().layer1(torch.ones(1, 8, 4, 4)), features)
            assert torch.equal(net(IMAGES), logits)
    return hits


def test_exceptions_at_random_moments_change_nothing(quiet):
    expected = gradients(copy.deepcopy(quiet).eval())
    assert struck(quiet, 400) > 40
    assert same(gradients(quiet.eval()), expected)
    for parameter in quiet.parameters():
        parameter.data.mul_(1.01)  # what was left over would be seen now
    assert fits_its_fold(quiet)


@pytest.mark.soak
def test_a_thousand_exceptions_at_random_moments_change_nothing(quiet):
    hits = 0
    while hits < 1000:
        hits += struck(quiet, 500)


def ways(net):
    """Every module, before and after."""
    for path, module in net.named_modules():
        if not path.startswith("controllers"):  # which are no layers: no pass calls their hooks
            yield path, module.register_forward_pre_hook
            yield path, module.register_forward_hook


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_hook_that_raises_before_or_after_any_layer(quiet, error, training):
    expected, images = state(quiet), batch(size=2, pixels=8)[0]
    quiet.train(training)
    right = quiet(images)
    part = quiet.layer1(torch.ones(2, 8, 4, 4))

    def fail(*_):
        raise error

    for _, register in ways(quiet):
        handle = register(fail)
        with pytest.raises(error):
            quiet(images)
        handle.remove()
        assert same(state(quiet), expected)
        assert torch.equal(quiet.layer1(torch.ones(2, 8, 4, 4)), part)
    assert torch.equal(quiet(images), right)


def test_a_part_called_after_an_interrupted_forward_has_today_s_step_sizes():
    """Ctrl-C in a notebook, new weights, and then a look at some features."""
    net, features = small().eval(), torch.randn(1, 8, 4, 4)
    handle = net.layer2.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        net(IMAGES)
    handle.remove()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.3)
        torch.testing.assert_close(net.layer1(features), timestepper.fold(net).layer1(features), rtol=0, atol=0)


def test_an_interrupted_inner_pass_leaves_the_outer_one_its_step_sizes():
    """A network that is entered again inside itself, and fails there."""
    net, seen = small().eval(), []
    images = batch()[0]

    def look_again(*_):
        if not seen:
            seen.append(1)
            with pytest.raises(KeyboardInterrupt):
                net(images)
        elif len(seen) == 1:
            seen.append(2)
            raise KeyboardInterrupt

    expected = gradients(net)
    seen.clear()
    net.layer2.register_forward_pre_hook(look_again)
    assert same(gradients(net), expected)
    assert seen == [1, 2]


def looks(model) -> tuple:
    return [(path, type(module), sorted(vars(module))) for path, module in model.named_modules()], list(model._modules)


def stopped_at(line: int, call) -> bool:
    """One Ctrl-C just before a line of ours, counted from the beginning of a call; whether there was such a line."""
    left = [line]

    def trace(frame, event, argument):
        if "timestepper" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and left and not line.startswith("with "):  # there Python is deaf, and a lock is given back
            left[0] -= 1
            if left[0] < 0:
                left.clear()
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
        return False
    except Interrupted:
        return True
    finally:
        sys.settrace(before)


def test_ctrl_c_at_any_moment_of_attach_and_detach_leaves_one_or_the_other():
    model = plain()
    bare, expected, logits = looks(model), bits(model), model.eval()(IMAGES)
    attached = looks(timestepper.attach(model, "independent"))
    timestepper.detach(model)
    for line in itertools.count():
        hit = stopped_at(line, lambda: timestepper.attach(model, "independent"))
        assert looks(model) in ((bare, attached) if hit else (attached,))
        if not hit:
            break
        if timestepper.is_attached(model):  # hit where all was done
            timestepper.detach(model)
    assert line > 300  # it was there at every line of ours
    for line in itertools.count():
        hit = stopped_at(line, lambda: timestepper.detach(model))
        assert looks(model) in ((bare, attached) if hit else (bare,))
        if not hit:
            break
        if not timestepper.is_attached(model):
            timestepper.attach(model, "independent")
    assert line > 20
    assert same(bits(model), expected)
    assert torch.equal(model(IMAGES), logits)


def test_ctrl_c_at_any_moment_of_looking_and_freezing_leaves_nothing_frozen():
    """Else a network would train on without gradients of its step sizes, and its spectral norms would stand still."""
    model = plain()
    nn.utils.parametrizations.spectral_norm(model.layer1[0].conv1)
    net = timestepper.attach(model, "independent").train()

    def look():
        with timestepper.frozen_steps(net):
            pass

    for line in itertools.count():
        hit = stopped_at(line, look)
        assert find(net).frozen is None
        assert not here.looks
        assert all(module.training for module in net.modules())
        if not hit:
            break
    assert line > 50
    assert all(gradient.any() for name, gradient in gradients(net).items() if name.startswith("controllers."))


class Final(CifarResNet):
    """A network whose class may have no subclass."""

    def __init_subclass__(cls):
        raise TypeError("final")


class Failing(Independent):
    """A user's controller that cannot be built for every stage."""

    def __init__(self, shape):
        super().__init__(shape)
        if shape.channels > 16:
            raise ValueError("too wide")


@pytest.mark.parametrize(("kind", "error"), [("lstm", TypeError), ("failing", ValueError)])
def test_an_attach_that_fails_leaves_a_plain_network(kind, error, monkeypatch):
    monkeypatch.setitem(timestepper.controllers.KINDS, "failing", Failing)
    model = plain(Final if kind == "lstm" else CifarResNet)
    classes, expected = [type(module) for module in model.modules()], model.eval()(IMAGES)
    with pytest.raises(error):
        timestepper.attach(model, kind)
    assert torch.equal(model(IMAGES), expected)
    assert [type(module) for module in model.modules()] == classes
