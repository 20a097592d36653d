"""The gain controller: relative updates, whatever the size of the weights."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import timestepper
from timestepper.adapters import create_model
from timestepper.controllers import StageShape, parse

IMAGES = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def attached(name):
    torch.manual_seed(0)
    return timestepper.attach(create_model(name), "gain")


def updates(net, stage):
    """What each block adds, relative to what it adds it to."""
    found = []
    for block in stage:

        def look(block, args, output):
            stream = block.shortcut(args[0])
            found.append(((output - stream).square().mean() / stream.square().mean()).sqrt().item())

        block.register_forward_hook(look)
    net(IMAGES)
    return found


def test_without_norms_every_block_adds_one_over_the_root_of_the_depth():
    net = attached("cifar/nf_resnet56").eval()
    found = updates(net, net.layer3)
    wanted = 27**-0.5  # at He's start each would add as much as there is
    assert all(wanted / 2 < update < 2 * wanted for update in found), found


def test_with_norms_a_step_grows_with_the_stream():
    sizes = timestepper.step_sizes(attached("cifar/resnet56"))["layer2"]
    wanted = [27**-0.5 * (1 + 1 / 27) ** (d / 2) for d in range(9)]
    torch.testing.assert_close(sizes, torch.tensor(wanted)[:, None].expand(9, 32))


@pytest.mark.parametrize(("name", "last"), [("cifar/nf_resnet8", "conv2"), ("cifar/resnet8", "bn2")])
def test_the_size_of_the_last_weights_changes_nothing(name, last):
    net = attached(name).eval()
    before = net(IMAGES)
    with torch.no_grad():
        getattr(net.layer2[0], last).weight.mul_(5)
    torch.testing.assert_close(net(IMAGES), before, rtol=1e-3, atol=1e-4)


def test_it_learns_and_is_not_capped():
    net = attached("cifar/nf_resnet14")
    optimiser = torch.optim.SGD(timestepper.parameter_groups(net, weight_decay=0.1), lr=0.05)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]
    with torch.no_grad():
        for controller in net.controllers.values():
            controller.output_bias.fill_(1.0)
    assert all((dt > 1).all() for dt in timestepper.step_sizes(net).values())
    before = {name: parameter.clone() for name, parameter in net.controllers.named_parameters()}
    for _ in range(2):  # the first moves the output layer, which starts at 0
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(IMAGES), torch.arange(8)).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
    assert all(not torch.equal(parameter, before[name]) for name, parameter in net.controllers.named_parameters())
    assert torch.equal(net.eval()(IMAGES), timestepper.fold(net)(IMAGES))


def test_a_branch_that_starts_at_0_stays_finite():
    net = create_model("cifar/nf_resnet8", start="fixup")
    sizes = timestepper.step_sizes(timestepper.attach(net, "gain"))
    assert all(dt.isfinite().all() and dt.max() < 101 for dt in sizes.values())


def test_a_discovered_network_has_it_too():
    torch.manual_seed(0)
    net = create_model("timm/vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)
    plain = net(IMAGES).detach()
    timestepper.attach(net, "gain")
    assert not torch.equal(net(IMAGES), plain)
    assert torch.equal(net.eval()(IMAGES), timestepper.fold(net)(IMAGES))


def test_the_depth_is_that_of_the_network():
    shape = StageShape(sites=4, channels=4, descriptor=7, reduction=1, normed=False)
    for everywhere, wanted in ((None, 0.5), (16, 0.25)):
        controller = parse("gain").build(replace(shape, network_sites=everywhere))
        assert torch.equal(controller(torch.zeros(4, 1)), torch.full((4, 4), wanted))


def test_the_stream_grows_by_e_however_deep_the_network_is():
    for depth in (20, 110):
        net = attached(f"cifar/nf_resnet{depth}").eval()
        growth = sum(torch.log1p(dt.square()).mean(1).sum() for dt in timestepper.step_sizes(net).values())
        assert 0.9 < growth < 1.0, growth  # at He's start a branch has gain 1


def test_a_step_never_looks_at_a_value():
    """On a GPU it would wait for it."""
    net = attached("cifar/nf_resnet8")
    with torch.profiler.profile() as seen:
        net(IMAGES).sum().backward()
    assert not {"aten::nonzero", "aten::item"} & {event.key for event in seen.key_averages()}
