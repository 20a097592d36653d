"""torch.compile: of the whole network, in one graph; of single blocks, which share one; in CUDA graphs."""

import copy

import pytest
import torch
from families import FAMILIES, KINDS
from torch import nn
from training import batch, fits_its_fold, gradients, plain, small, tiny, train

import timestepper
from timestepper.models import CifarResNet


def close(found, expected, **tolerance):
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}", **tolerance)


def compiled_gradients(net: nn.Module, compiled: nn.Module, images) -> dict:
    found = gradients(compiled, images)
    return {name.replace("_orig_mod.", ""): gradient for name, gradient in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_the_whole_network_is_one_graph(kind):
    net = train(timestepper.attach(plain(), kind)).double()  # so that a difference means a mistake, not a sum's order
    images, graphs = batch(pixels=16)[0].double(), []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    expected = gradients(copy.deepcopy(net), images)
    compiled = torch.compile(net, fullgraph=True, backend=backend)
    close(compiled_gradients(net, compiled, images), expected, rtol=1e-9, atol=1e-12)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)  # and it is not yesterday's weights that are in the graph
    close({"logits": compiled(images)}, {"logits": copy.deepcopy(net)(images)}, rtol=1e-9, atol=1e-12)
    assert len(graphs) == 1


@pytest.mark.parametrize("family", ["timm seresnet18", "torchvision resnet50", "densenet", "cliquenet"])
def test_gates_convolutions_and_cliques_compile_to_one_full_graph(family):
    net = timestepper.attach(FAMILIES[family]()).eval()
    images, _ = batch()
    with torch.no_grad():
        compiled = torch.compile(net, fullgraph=True, backend="eager")(images)
        torch.testing.assert_close(compiled, net(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["lstm", "two_fc"])
def test_inductor_gives_the_right_gradients_for_a_stage_of_one_site(kind):
    net = tiny(kind).double()
    images = batch(pixels=8)[0].double()
    expected = gradients(copy.deepcopy(net), images)
    close(compiled_gradients(net, torch.compile(net), images), expected, rtol=1e-6, atol=1e-8)


def test_compiled_in_place():
    net = small().double()
    images = batch(pixels=16)[0].double()
    expected = gradients(copy.deepcopy(net), images)
    net.compile(backend="eager")
    close(gradients(net, images), expected, rtol=1e-9, atol=1e-12)


def test_a_network_inside_a_compiled_one():
    net = small().double()
    images = batch(pixels=16)[0].double()
    expected = gradients(copy.deepcopy(net), images)
    outer = torch.compile(nn.Sequential(nn.Identity(), net), fullgraph=True, backend="eager")
    found = gradients(outer, images)
    close({name.removeprefix("_orig_mod.1."): value for name, value in found.items()}, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("whole", [True, False], ids=["in its network", "alone"])
def test_single_blocks_share_one_graph(whole):
    """As for a large network, whose compilation would take long: one block is compiled, the others take its graph."""
    torch.manual_seed(0)
    net = timestepper.attach(CifarResNet(26, num_classes=5, width=8)).double()
    images, graphs = batch(pixels=16)[0].double(), []
    expected = gradients(copy.deepcopy(net), images)

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    for block in net.layer1:
        block.compile(backend=backend, fullgraph=True)
    if whole:
        close(gradients(net, images), expected, rtol=1e-9, atol=1e-12)
        assert len(graphs) == 1
    else:
        plain_net, features = copy.deepcopy(net), torch.randn(2, 8, 8, 8, dtype=torch.float64)
        for block in plain_net.layer1:
            block._compiled_call_impl = None
        close({"features": net.layer1(features)}, {"features": plain_net.layer1(features)}, rtol=1e-9, atol=1e-12)


def test_a_graph_break_in_the_middle():
    class Broken(CifarResNet):
        def forward(self, x):
            x = self.layer1(torch.relu(self.bn1(self.conv1(x))))
            torch._dynamo.graph_break()
            return self.linear(self.layer3(self.layer2(x)).mean((2, 3)))

    net = small(Broken).double()
    images = batch(pixels=16)[0].double()
    expected = gradients(copy.deepcopy(net), images)
    close(compiled_gradients(net, torch.compile(net, backend="eager"), images), expected, rtol=1e-9, atol=1e-12)


def test_a_block_that_is_left_out():
    net = small().double()
    images = batch(pixels=16)[0].double()
    expected = gradients(copy.deepcopy(net), images)
    net.layer2[0].forward = torch.compiler.disable(net.layer2[0].forward)
    close(compiled_gradients(net, torch.compile(net, backend="eager"), images), expected, rtol=1e-9, atol=1e-12)


def test_modes_do_not_mix():
    """Training, evaluation without gradients, training: each call is what the plain one is."""
    net = small()
    images, compiled = batch(pixels=16)[0], torch.compile(net, backend="eager")
    for training in (True, False, True):
        twin = copy.deepcopy(net).train(training)
        net.train(training)
        with torch.set_grad_enabled(training):
            found, expected = compiled(images), twin(images)
        torch.testing.assert_close(found, expected)
        assert found.requires_grad == training


def test_a_compiled_network_is_looked_into_folded_and_frozen():
    net = small().eval()
    images, _ = batch()
    compiled = torch.compile(net, backend="eager")
    assert torch.equal(timestepper.fold(compiled)(images), net(images))
    assert timestepper.evolution_time(compiled) == timestepper.evolution_time(net)
    with torch.no_grad():
        with timestepper.frozen_steps(compiled):
            torch.testing.assert_close(compiled(images), net(images))
        for parameter in net.parameters():
            parameter.mul_(1.1)
        torch.testing.assert_close(compiled(images), net(images))
    assert fits_its_fold(net)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestCudaGraphs:
    def test_a_recorded_step_follows_the_weights(self):
        """The graph is replayed, the weights move, and an ordinary evaluation in between is that of the fold."""
        net = small().cuda().eval()
        images = batch()[0].cuda()
        with torch.no_grad():
            for _ in range(3):
                net(images)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = net(images)
            for _ in range(3):
                for parameter in net.parameters():
                    parameter.data.mul_(1.05)
                graph.replay()
                expected = timestepper.fold(net)(images)
                torch.testing.assert_close(logits, expected)
                assert torch.equal(net(images), expected)

    def test_reduce_overhead(self):
        net = small().cuda()
        twin, images = copy.deepcopy(net), batch()[0].cuda()
        compiled = torch.compile(net, mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            for model in (compiled, twin):
                model.zero_grad()
                model(images).square().sum().backward()
        for (name, found), expected in zip(net.named_parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-2, atol=1e-3, msg=name)


def test_what_replaces_a_layer_is_noticed_in_a_compiled_network():
    """Without a look it would run without its step size, silently."""
    net, images = small().eval(), batch(pixels=16)[0]
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    compiled(images)
    net.layer1[0].bn2 = nn.BatchNorm2d(8).eval()
    found = compiled(images)
    assert torch.equal(found, timestepper.fold(net)(images))
    net.layer1[0].bn2 = nn.Identity()
    with pytest.raises(Exception, match=r"layer1\.0\.bn2 was replaced by Identity since attach"):
        compiled(images)


def test_a_network_with_a_compiled_block_can_be_copied_and_folded():
    net, images = small().eval(), batch(pixels=16)[0]
    net.layer1[0] = torch.compile(net.layer1[0], backend="eager")
    expected = net(images)
    assert torch.equal(copy.deepcopy(net)(images), expected)
    folded = timestepper.fold(net)
    with torch.no_grad():
        net.layer1[0].conv1.weight.zero_()
    assert torch.equal(folded(images), expected)
