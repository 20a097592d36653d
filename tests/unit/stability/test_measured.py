"""Measured growth, Euler condition and gradient shares against dense Jacobians and autograd."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from families import FAMILIES
from scipy.sparse.linalg import ArpackNoConvergence
from torch.nn import functional as F

import timestepper
from timestepper.equations import backpropagated
from timestepper.errors import StabilityError
from timestepper.models import CifarResNet
from timestepper.stability import analyse, euler_condition, gradient_shares, measured_growth, open_chain
from timestepper.stability.euler import EulerBlock, branch
from timestepper.stability.perturbation import top_direction


@pytest.fixture(scope="module")
def small():
    """Few enough features (32 to 128) for dense Jacobians, and not at its initial state."""
    torch.manual_seed(1)
    net = CifarResNet(14, in_chans=1, width=2)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 2.0)
            module.bias.data.uniform_(-0.5, 0.5)
    return open_chain(net.double(), torch.randn(3, 1, 8, 8, dtype=torch.float64))


def jacobian(function, at):
    matrix = torch.autograd.functional.jacobian(function, at)
    return matrix.reshape(-1, at.numel())


def test_power_iterated_growth_is_the_largest_singular_value(small):
    growth = measured_growth(small, "power", size=1e-7, iterations=300)
    values = [
        torch.linalg.matrix_norm(jacobian(lambda y: small.run(y)[-1], small.features[0][i : i + 1]), 2).item()
        for i in range(3)
    ]
    assert growth.end_to_end == pytest.approx(max(values), rel=1e-3)
    assert growth.mean == pytest.approx(sum(values) / 3, rel=1e-3)
    block = small.links[3].block
    values = [torch.linalg.matrix_norm(jacobian(block, small.features[3][i : i + 1]), 2).item() for i in range(3)]
    assert growth.blocks[3] == pytest.approx(max(values), rel=1e-3)


def test_random_growth_is_the_largest_over_samples_block_by_block(small):
    found = measured_growth(small, "random", size=0.1, seed=3)
    start = small.features[0]
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    scale = 0.1 * start.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)
    moved = small.run(start + noise * scale.reshape(-1, 1, 1, 1))
    lengths = [(a - b).flatten(1).norm(dim=1) for a, b in zip(moved, small.features, strict=True)]
    assert found.blocks == pytest.approx([(after / before).max().item() for before, after in pairwise(lengths)])
    whole = lengths[-1] / lengths[0]
    assert (found.end_to_end, found.mean) == pytest.approx((whole.max().item(), whole.mean().item()))


@pytest.fixture(scope="module")
def steep():
    """Features beyond 1e20, as after hundreds of untrained blocks: finite in float32, but their squares are not."""
    torch.manual_seed(0)
    net = CifarResNet(20, in_chans=1, width=2)
    for stage in (net.layer1, net.layer2, net.layer3):
        for block in stage:
            block.bn2.weight.data.fill_(2000.0)
    return net


@pytest.mark.parametrize("kind", ["random", "adversarial", "power"])
def test_growth_beyond_the_squares_of_float32(steep, kind):
    images = torch.randn(2, 1, 8, 8)
    found = measured_growth(open_chain(steep, images), kind)
    exact = measured_growth(open_chain(copy.deepcopy(steep).double(), images.double()), kind)
    assert exact.end_to_end > 1e20
    assert found.end_to_end == pytest.approx(exact.end_to_end, rel=0.02)
    assert found.blocks == pytest.approx(exact.blocks, rel=0.02)


def test_no_gradient_is_no_share(steep):
    """A decision beyond doubt has no gradient; a share of 0 would say that the blocks are idle."""
    shares = gradient_shares(open_chain(steep, torch.randn(2, 1, 8, 8)))
    assert {(share.branch, share.residual) for share in shares} == {(None, None)}


def test_top_direction_of_a_known_map():
    matrix = torch.diag(torch.tensor([3.0, -5.0, 1.0]))
    direction = top_direction(lambda x: x @ matrix.T, torch.zeros(2, 3), torch.ones(2, 3), 60)
    assert direction.abs() == pytest.approx(torch.tensor([[0.0, 1.0, 0.0]] * 2), abs=1e-3)


def test_kinds_of_growth_are_ordered_near_the_features(stepped, digits):
    chain = open_chain(copy.deepcopy(stepped).double(), digits.test[0][:8].double())
    random, adversarial, power = (
        measured_growth(chain, kind, size=1e-6, labels=digits.test[1][:8]).mean
        for kind in ("random", "adversarial", "power")
    )
    assert random < adversarial <= power * 1.001


def test_an_adversarial_perturbation_raises_the_loss_more_than_a_random_one(plain, digits):
    from timestepper.stability.perturbation import _climb, _lengths, _scaled

    images, labels = digits.test[0][:32], digits.test[1][:32]
    chain = open_chain(plain, images)
    start = chain.features[0]
    radius = 0.3 * _lengths(start)
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    climbed = _climb(chain, noise, radius, labels, 10)
    assert (_lengths(climbed) <= radius * 1.0001).all()
    clean, random, adversarial = (
        F.cross_entropy(chain.logits(start + e), labels).item()
        for e in (torch.zeros_like(start), _scaled(noise, radius), climbed)
    )
    assert adversarial > 2 * max(random, clean)


def test_without_labels_the_decision_itself_is_attacked(small):
    decided = small.logits(small.features[0]).argmax(1)
    assert measured_growth(small, "adversarial") == measured_growth(small, "adversarial", labels=decided)
    assert measured_growth(small, "adversarial") != measured_growth(small, "adversarial", labels=(decided + 1) % 10)


def test_the_euler_condition_holds_within_the_tolerance_of_its_eigenvalues():
    assert EulerBlock("stage", "path", radius=1 + 0.5e-4).stable
    assert EulerBlock("stage", "path", radius=1 + 2e-4).stable is False


def test_unknown_kinds_are_listed(small):
    with pytest.raises(StabilityError, match="random, adversarial, power"):
        measured_growth(small, "sideways")


@pytest.mark.parametrize("count", [4, 40])  # by Arnoldi, and all at once where that is too small for Arnoldi
def test_eigenvalues_agree_with_the_dense_jacobian(small, count):
    found = euler_condition(small, sample=1, count=count)
    square = 0
    for link, features, block in zip(small.links, small.features, found, strict=False):
        assert block.path == link.path
        if block.skipped:
            assert "no square Jacobian" in block.skipped
            assert block.stable is None
            continue
        square += 1
        at = features[1:2]
        dense = np.linalg.eigvals(jacobian(lambda y, link=link: branch(link, y), at).numpy())
        largest = np.sort(np.abs(1 + dense))[::-1][:count]
        assert block.converged
        assert np.abs(1 + np.array(block.eigenvalues)) == pytest.approx(largest, rel=1e-3)
        assert block.radius == pytest.approx(largest[0], rel=1e-3)
        assert block.stable == (largest[0] <= 1 + 1e-4)
    assert square == 4  # two blocks of six change the size


def test_eigenvalues_are_computed_by_one_thread_and_the_others_come_back(small, monkeypatch):
    """On a busy machine, thousands of tiny passes spend most of their time waiting for a second thread."""
    before, seen = torch.get_num_threads(), []

    def fails(*args, **options):
        seen.append(torch.get_num_threads())
        raise ValueError("no Arnoldi here")

    monkeypatch.setattr("scipy.sparse.linalg.eigs", fails)
    torch.set_num_threads(3)
    try:
        with pytest.raises(ValueError, match="no Arnoldi here"):
            euler_condition(small)
        assert (seen, torch.get_num_threads()) == ([1], 3)
    finally:
        torch.set_num_threads(before)


def test_eigenvalues_that_did_not_converge_certify_nothing(small, monkeypatch):
    """Arnoldi may have missed the largest: a large one still refutes Eq. 4, small ones do not prove it."""
    for found, stable in ((np.array([0.5, 0.2]), None), (np.array([2.0, 0.5]), False)):

        def gives_up(*args, found=found, **options):
            raise ArpackNoConvergence("no convergence", found.astype(complex), None)

        monkeypatch.setattr("scipy.sparse.linalg.eigs", gives_up)
        block = euler_condition(small)[0]
        assert not block.converged
        assert block.stable is stable
        assert block.radius == pytest.approx(found[0])


def test_a_contracting_branch_is_stable_and_a_smaller_step_moves_towards_one():
    net = CifarResNet(8, in_chans=1, width=2).double()
    for block in (net.layer1[0], net.layer2[0], net.layer3[0]):
        for conv in (block.conv1, block.conv2):
            torch.nn.init.dirac_(conv.weight)
        block.bn1.bias.data.fill_(10.0)  # ReLU passes everything
        block.bn2.weight.data.fill_(-0.6)  # F(y) = -0.6 y + constant
    inputs = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    whole, tenth = (
        euler_condition(open_chain(timestepper.attach(copy.deepcopy(net), f"fixed({step})"), inputs))[0]
        for step in (1.0, 0.1)
    )
    assert whole.stable
    assert whole.radius == pytest.approx(0.4, rel=1e-3)
    assert tenth.radius == pytest.approx(0.94, rel=1e-3)


@pytest.mark.parametrize("family", ["timm resnet18", "timm seresnet50", "torchvision resnet50"])
def test_the_branch_is_what_the_block_adds_to_its_shortcut(family):
    """Many blocks add in place; the branch must be read before that."""
    net = FAMILIES[family]()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.0)
    chain = open_chain(net, torch.randn(1, 3, 64, 64))
    for link, before, after in zip(chain.links, chain.features, chain.features[1:], strict=False):
        downsample = chain.model.get_submodule(link.site.path).downsample
        shortcut = before if downsample is None else downsample(before)
        torch.testing.assert_close(F.relu(shortcut + branch(link, before)), after)


def test_gradient_shares_are_the_parts_of_equation_8(small):
    labels = torch.tensor([3, 1, 4])
    shares = gradient_shares(small, labels)
    for index in (0, 1, 3, 5):  # inside their sizes: blocks 2 and 4 change it
        features = small.features[index].clone().requires_grad_()
        link = small.links[index]
        total = features + branch(link, features)
        loss = F.cross_entropy(_rest(small, index + 1, total), labels)
        at_features, at_sum = torch.autograd.grad(loss, [features, total])
        assert shares[index].branch == pytest.approx(((at_features - at_sum).norm() / at_features.norm()).item())
    assert [share.residual is None for share in shares] == [False, False, True, False, True, False]


def _rest(chain, first, total):
    features = F.relu(total)
    for link in chain.links[first:]:
        features = link.block(features)
    return chain.model.linear(features.mean((2, 3)))


def test_the_residual_share_is_the_second_term_of_equation_8():
    """Without ReLU behind the sum, dL/dy_n - dL/dy_D is exactly the pull-back of the sum of all later branches."""
    torch.manual_seed(0)
    net = CifarResNet(20, in_chans=1, width=2).double()
    for block in net.layer1:
        block.bn2.bias.data.fill_(100.0)  # sums stay positive, so that ReLU is the identity
    chain = open_chain(net, torch.randn(2, 1, 8, 8, dtype=torch.float64))
    labels = torch.tensor([0, 1])
    share = gradient_shares(chain, labels)[0]
    start = chain.features[0].clone().requires_grad_()
    last = chain.features[3].clone().requires_grad_()
    (at_last,) = torch.autograd.grad(F.cross_entropy(_rest(chain, 3, last), labels), last)

    def sum_of_branches(y):
        total = torch.zeros_like(y)
        for link in chain.links[:3]:
            added = branch(link, y)
            total, y = total + added, y + added
        return total

    def pull_back(gradient):
        return torch.autograd.grad(sum_of_branches(start), start, gradient)[0]

    identity, residual = backpropagated(at_last, pull_back)
    assert share.residual == pytest.approx((residual.norm() / (identity + residual).norm()).item(), rel=1e-6)


def test_small_steps_make_the_blocks_idle(plain, digits):
    images, labels = digits.test[0][:16], digits.test[1][:16]
    shares = {
        step: gradient_shares(open_chain(timestepper.attach(copy.deepcopy(plain), f"fixed({step})"), images), labels)
        for step in (1.0, 0.1, 0.001)
    }
    means = {step: sum(share.branch for share in each) / len(each) for step, each in shares.items()}
    assert means[1.0] > 0.2
    assert means[0.001] < 0.01
    assert means[0.001] == pytest.approx(means[0.1] / 100, rel=0.5)


def test_a_network_with_a_gate_has_all_measured_figures():
    net = timestepper.attach(FAMILIES["timm seresnet18"](), "independent")
    found = analyse(net, torch.randn(2, 3, 32, 32), bound=False)
    assert "bound" not in found
    assert all(math.isfinite(block["growth_power"]) for block in found["blocks"])
    assert {"branch_share", "euler_radius", "step_size"} <= set(found["blocks"][0])


def test_figures_are_in_whole_float32_inside_a_run_that_is_not(plain, digits):
    images = digits.test[0][:4]
    expected = measured_growth(open_chain(plain, images), "random")
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    try:
        with torch.autocast("cpu", torch.bfloat16):
            found = measured_growth(open_chain(plain, images), "random")
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32 = before
    assert found == expected
