"""Activation checkpointing: recomputed blocks find the step sizes of the pass they belong to, to the last bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from families import FAMILIES
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from training import batch, bits, fits_its_fold, gradients, same, small, train

import timestepper
from timestepper.errors import ActivationCheckpointingError
from timestepper.models import CifarResNet


class Recomputing(CifarResNet):
    """A user's own network that recomputes its stages."""

    options = {"use_reentrant": False}  # noqa: RUF012
    inside = staticmethod(lambda stage, x: stage(x))

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = checkpoint(self.inside, stage, x, **self.options)
        return self.linear(x.mean((2, 3)))


class Nested(Recomputing):
    """Recomputes its stages, and in these every block once more."""

    @staticmethod
    def inside(stage, x):
        for block in stage:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Reentrant(Recomputing):
    options = {"use_reentrant": True}  # noqa: RUF012


@pytest.fixture(scope="module")
def expected():
    """In eval mode: a second forward must not find other statistics."""
    return gradients(small().eval())


@pytest.mark.parametrize("kind", [Recomputing, Nested])
def test_gradients_are_those_without_it(kind, expected):
    net = small(kind)
    assert same(gradients(net.eval()), expected)
    assert same(gradients(net.train()), gradients(small().train()))
    assert fits_its_fold(net)


def test_a_backward_pass_in_another_thread_than_its_forward_recomputes_with_the_forward_s_step_sizes():
    """Also where the thread of the backward pass has trained before, with other weights."""
    net = small(Recomputing).eval()
    images, labels = batch(size=2, pixels=16)
    F.cross_entropy(net(images), labels).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)
    plain = small().eval()
    plain.load_state_dict(net.state_dict())
    net.zero_grad()
    with ThreadPoolExecutor(1) as pool:
        logits = pool.submit(net, images).result()
    F.cross_entropy(logits, labels).backward()
    found = {name: parameter.grad for name, parameter in net.named_parameters()}
    assert same(found, gradients(plain, images, labels))


def test_the_whole_network_as_one_checkpoint(expected):
    net = small().eval()
    images, labels = batch()
    F.cross_entropy(checkpoint(net, images, use_reentrant=False), labels).backward()
    assert same({name: parameter.grad for name, parameter in net.named_parameters()}, expected)


def test_blocks_called_by_themselves(expected):
    """Without a pass of the network around them, forward and recomputation each compute their step sizes."""
    net, features = small(), torch.randn(2, 8, 8, 8)
    found = []
    for run in (net.layer1, lambda x: checkpoint(net.layer1, x, use_reentrant=False)):
        net.load_state_dict(small().state_dict())
        net.zero_grad()
        run(features).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    assert same(*found)
    assert any(name.startswith("controllers.layer1") for name in found[0])


@pytest.mark.parametrize("kind", [Recomputing, Nested])
def test_two_forwards_before_one_backward(kind):
    images, labels = batch()
    found = []
    for net in (small(kind).eval(), small().eval()):
        losses = [F.cross_entropy(net(images[half]), labels[half]) for half in (slice(0, 2), slice(2, 4))]
        sum(losses).backward()
        found.append({name: parameter.grad for name, parameter in net.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-7, msg=name)


def test_a_pass_without_gradients_in_between(expected):
    """As when averaged weights are put in for an evaluation before the backward pass: it has its own step sizes."""
    net = small(Recomputing).eval()
    images, labels = batch()
    loss = F.cross_entropy(net(images), labels)
    trained = bits(net.controllers)
    with torch.no_grad():
        for parameter in net.controllers.parameters():
            parameter.data.add_(1.0)
        net(images)
        net.layer1(torch.zeros(1, 8, 4, 4))
        for name, parameter in net.controllers.named_parameters():
            parameter.data.copy_(trained[name])
    loss.backward()
    assert same({name: parameter.grad for name, parameter in net.named_parameters()}, expected)


@pytest.mark.parametrize("frozen", ["all weights", "steps"])
def test_an_input_s_gradient_where_nothing_is_trained(frozen):
    """Recomputed blocks must not find the step sizes of the last training step."""
    found = []
    for kind in (Recomputing, CifarResNet):
        net = train(small(kind)).eval()
        net.load_state_dict(small().state_dict())
        images = batch()[0].requires_grad_()
        if frozen == "all weights":
            net.requires_grad_(False)(images).sum().backward()
        else:
            with timestepper.frozen_steps(net):
                net(images).sum().backward()
        found.append(images.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("order", [1, -1])
def test_a_pass_and_blocks_by_themselves_before_one_backward(order):
    """Either may be recomputed with what the other had: a checkpoint counts what is saved inside of it."""
    net, images = train(timestepper.attach(FAMILIES["timm resnet18"]())).eval(), batch()[0]
    found = []
    for recompute in (True, False):
        net.set_grad_checkpointing(recompute)
        net.zero_grad()
        losses = [run(images).square().mean() for run in (net, net.forward_features)[::order]]
        sum(losses).backward()
        found.append({name: parameter.grad.clone() for name, parameter in net.named_parameters()})
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], rtol=1e-4, atol=1e-6, msg=name)


def test_torch_s_wrapper_around_blocks(expected):
    net = small().eval()
    apply_activation_checkpointing(net, check_fn=lambda module: type(module).__name__ == "BasicBlock")
    assert type(net.layer1[0]).__name__ == "CheckpointWrapper"
    assert list(net.state_dict()) == list(small().state_dict())
    assert same(dict(zip(expected, gradients(net).values(), strict=True)), expected)
    assert fits_its_fold(net)


def test_torch_s_wrapper_around_the_stepped_layer_itself(expected):
    net = small().eval()
    apply_activation_checkpointing(net, check_fn=lambda module: module is net.layer1[0].bn2)
    assert same(dict(zip(expected, gradients(net).values(), strict=True)), expected)


class Scaled(nn.Module):
    """A block with a scale of its own, which recomputes its branch itself, as others' ConvNeXt with ``with_cp``."""

    def __init__(self):
        super().__init__()
        self.norm, self.fc1, self.fc2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.7))
        self.recomputed: dict | None = None

    def branch(self, x):
        return self.scale * self.fc2(F.gelu(self.fc1(self.norm(x))))

    def forward(self, x):
        return x + (self.branch(x) if self.recomputed is None else checkpoint(self.branch, x, **self.recomputed))


WAYS_IN = {
    "the network": lambda net, x: net(x),
    "a block": lambda net, x: net[1](x),
    "both": lambda net, x: net(net[0](x)) + net[1](x),
    "a checkpoint": lambda net, x: checkpoint(net[1], checkpoint(net, x, use_reentrant=False), use_reentrant=False),
}


@pytest.fixture
def scaled():
    torch.manual_seed(0)
    return timestepper.attach(nn.Sequential(Scaled(), Scaled()), example=torch.randn(4, 8))


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_stepped_layer_that_recomputes_its_own_branch(scaled, way):
    def found() -> dict:
        scaled.zero_grad()
        WAYS_IN[way](scaled, torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()).square().sum().backward()
        return {name: p.grad.clone() for name, p in scaled.named_parameters() if p.grad is not None}

    expected = found()
    assert "1.scale" in expected
    for block in scaled:
        block.recomputed = {"use_reentrant": False}
    assert same(found(), expected)


def test_the_reentrant_form_inside_a_stepped_layer_is_refused_by_name_too(scaled):
    scaled[1].recomputed = {"use_reentrant": True}
    with pytest.raises(ActivationCheckpointingError, match="reentrant activation checkpointing"):
        scaled(torch.randn(4, 8))


def test_timm_s_switch():
    net = train(timestepper.attach(FAMILIES["timm resnet18"]())).eval()
    without = gradients(net)
    net.set_grad_checkpointing(True)
    assert net.grad_checkpointing
    assert same(gradients(net), without)


def test_a_compiled_network_may_recompute(expected):
    found = gradients(torch.compile(small(Recomputing).eval(), backend="aot_eager"))
    for name, gradient in expected.items():
        torch.testing.assert_close(found[f"_orig_mod.{name}"], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_the_reentrant_form_is_refused_by_name_and_changes_nothing(expected):
    net = small(Reentrant).eval()
    before = bits(net)
    with pytest.raises(ActivationCheckpointingError, match=r"use the non-reentrant form .*activation_checkpointing_kw"):
        net(batch()[0].requires_grad_())
    with pytest.raises(ActivationCheckpointingError, match="reentrant activation checkpointing"):
        checkpoint(net.layer1, torch.randn(1, 8, 4, 4, requires_grad=True), use_reentrant=True)
    assert same(bits(net), before)
    net.options = Recomputing.options
    assert same(gradients(net), expected)


def test_the_reentrant_form_runs_where_nothing_is_recomputed():
    net = small(Reentrant).eval()
    with torch.no_grad():
        torch.testing.assert_close(net(batch()[0]), small().eval()(batch()[0]))


@pytest.mark.filterwarnings("ignore:None of the inputs")  # torch's, that the stage gets no gradient
def test_the_reentrant_form_runs_where_no_input_has_a_gradient():
    net, features = small().eval(), torch.randn(1, 8, 4, 4)
    found = checkpoint(net.layer1, features, use_reentrant=True)
    assert not found.requires_grad
    assert torch.equal(found, net.layer1(features))


class Detached(CifarResNet):
    """Runs its first stage without gradients, as who trains the last stages alone."""

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        with torch.no_grad():
            x = self.layer1(x)
        return self.linear(self.layer3(self.layer2(x)).mean((2, 3)))


def test_a_user_s_own_region_without_gradients_is_not_mistaken_for_it():
    net = small(Detached).eval()
    images, labels = batch()
    F.cross_entropy(net(images), labels).backward()
    folded = timestepper.fold(net)
    F.cross_entropy(folded(images), labels).backward()
    assert not net.layer1[0].conv1.weight.grad.any()  # only its step size, which nothing depends on, was a graph
    torch.testing.assert_close(net.linear.weight.grad, folded.linear.weight.grad)
    assert fits_its_fold(net)
    with torch.no_grad():
        net.layer1(torch.zeros(1, 8, 4, 4))


def test_an_attached_teacher_inside_a_reentrant_checkpoint_is_left_alone():
    """It runs without gradients there, and nobody recomputes it: it is not what the checkpoint is about."""
    teacher = timestepper.freeze_base(small().eval())
    teacher.controllers.requires_grad_(False)
    head = nn.Linear(5, 5)
    found = checkpoint(lambda x: head(teacher(x)), batch()[0].requires_grad_(), use_reentrant=True)
    found.sum().backward()
    assert head.weight.grad.any()


class TheirOwn(torch.autograd.Function):
    """Reentrant checkpointing as other libraries write it."""

    @staticmethod
    def forward(ctx, block, x):
        ctx.block = block
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.block(x).backward(gradient)
        return None, x.grad


def test_the_reentrant_form_of_others_is_refused_by_name_too():
    class Theirs(Recomputing):
        def forward(self, x):
            x = torch.relu(self.bn1(self.conv1(x)))
            for stage in (self.layer1, self.layer2, self.layer3):
                x = TheirOwn.apply(stage, x)
            return self.linear(x.mean((2, 3)))

    net = small(Theirs)
    with pytest.raises(ActivationCheckpointingError, match="reentrant activation checkpointing"):
        net(batch()[0])
