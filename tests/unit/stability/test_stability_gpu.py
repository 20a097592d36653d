"""The same figures on a GPU as on the CPU, on networks that were trained. Skipped where there is none."""

import copy
import math

import pytest
import torch

from timestepper.stability import (
    Monitor,
    euler_condition,
    gradient_shares,
    measured_growth,
    open_chain,
    proposition_1,
    robustness,
)
from timestepper.stability.perturbation import KINDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ("cpu", "cuda")


@pytest.fixture(params=["plain", "stepped"])
def net(request):
    return request.getfixturevalue(request.param)


def on(device, net, *tensors):
    """Copies there; float64, so that the two may differ by rounding only."""
    return copy.deepcopy(net).double().to(device), *(t.to(device) for t in tensors)


def chain_on(device, net, digits):
    images, labels = (tensor[:4] for tensor in digits.test)
    model, images, labels = on(device, net, images.double(), labels)
    return open_chain(model, images), labels


def test_the_bound(net, digits):
    cpu, gpu = (proposition_1(chain_on(device, net, digits)[0]) for device in DEVICES)
    assert gpu.log == pytest.approx(cpu.log, rel=1e-3)
    assert [b.log for b in gpu.blocks] == pytest.approx([b.log for b in cpu.blocks], rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_measured_growth_stays_below_the_bound(net, digits, kind):
    chain, labels = chain_on("cuda", net, digits)
    growth = measured_growth(chain, kind, labels=labels)
    assert growth.end_to_end > 0
    assert math.log(growth.end_to_end) <= proposition_1(chain).log_certified


def test_eigenvalues_and_gradient_shares(net, digits):
    found = []
    for device in DEVICES:
        chain, labels = chain_on(device, net, digits)
        found.append(([block.radius or 0.0 for block in euler_condition(chain)], gradient_shares(chain, labels)))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-3)
    assert [share.branch for share in found[1][1]] == pytest.approx([share.branch for share in found[0][1]], rel=1e-6)


def test_noise_is_the_same_noise(net, digits):
    tables = []
    for device in DEVICES:
        model, images, labels = on(device, net, *(tensor[:200] for tensor in digits.test))
        tables.append(robustness.noise(model, [(images.double(), labels)], (0.0, 0.5), draws_each=2))
    for level, scores in tables[0].items():
        assert [score.error for score in tables[1][level]] == [score.error for score in scores]
        assert [score.loss for score in tables[1][level]] == pytest.approx([score.loss for score in scores], rel=1e-6)


def test_attacks_and_corruptions_run(net, digits):
    model, images, labels = on("cuda", net, *(tensor[:50] for tensor in digits.test))
    model, batches = model.float(), [(images, labels)]
    clean = robustness.noise(model, batches, (0.0,), draws_each=1)[0.0][0].error
    assert robustness.attacks(model, batches, digits.scale, (8 / 255,))["pgd"][8 / 255].error >= clean
    assert all(len(scores) == 5 for scores in robustness.corrupted(model, batches, digits.scale).values())


def test_the_monitor_agrees(net):
    cpu, gpu = (Monitor((1, 8, 8), first=400).observe(on(device, net)[0].float()) for device in DEVICES)
    assert gpu == pytest.approx(cpu, rel=1e-3)
