"""The order of an epoch and the share of a rank."""

import pytest
import torch

from timestepper.data.order import Plan, epoch_order, mix
from timestepper.errors import DataError


def test_order_is_a_permutation_and_a_function_of_seed_and_epoch_alone():
    torch.manual_seed(1)
    first = epoch_order(1000, seed=3, epoch=5)
    torch.manual_seed(2)
    torch.rand(17)
    assert torch.equal(first, epoch_order(1000, seed=3, epoch=5))
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert not torch.equal(first, epoch_order(1000, seed=3, epoch=6))
    assert not torch.equal(first, epoch_order(1000, seed=4, epoch=5))
    assert not torch.equal(epoch_order(1000, seed=0, epoch=1), epoch_order(1000, seed=1, epoch=0))


def test_the_order_of_a_seed_is_pinned():
    """A change would silently make every resumed run another run."""
    assert mix("order", 0, 0) == 7453028512061360496
    assert epoch_order(10, seed=0, epoch=0).tolist() == [9, 3, 8, 5, 2, 7, 6, 0, 4, 1]


def test_mixed_seeds_do_not_collide_and_fit_torch():
    seeds = {mix("augment", seed, epoch, index) for seed in range(10) for epoch in range(10) for index in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert mix(1, 23) != mix(12, 3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("world", [2, 4])
def test_the_global_batch_of_a_step_is_the_same_for_any_world(training, world):
    whole = Plan(101, 20, seed=7, training=training).indices(3)
    shares = [Plan(101, 20, 7, training, rank, world) for rank in range(world)]
    assert {share.local_batch for share in shares} == {20 // world}
    assert {share.steps for share in shares} == {len(whole)}
    assert torch.equal(torch.cat([share.indices(3) for share in shares], dim=1), whole)


def test_training_drops_the_partial_batch_and_repeats_no_sample():
    plan = Plan(101, 20, seed=0, training=True)
    indices = plan.indices(0)
    assert plan.steps == 5
    assert indices.shape == (5, 20)
    assert len(indices.unique()) == 100


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("samples", [3, 40, 41, 59])
def test_evaluation_sees_each_sample_once_on_any_number_of_ranks(samples, world):
    shares = [Plan(samples, 20, 0, training=False, rank=rank, world=world).indices(9) for rank in range(world)]
    assert len({share.shape for share in shares}) == 1
    seen = torch.cat([share.flatten() for share in shares])
    assert seen[seen >= 0].sort().values.tolist() == list(range(samples))
    assert torch.equal(Plan(samples, 20, 0, training=False).indices(0).flatten()[:samples], torch.arange(samples))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((100, 10, 0, True, 0, 3), "batch of 10 cannot be shared equally by 3 processes; choose a multiple of 3"),
        ((100, 0, 0, True, 0, 1), "batch of 0 cannot be shared"),
        ((100, 10, 0, True, 2, 2), "rank 2 does not exist in a world of 2"),
        ((9, 10, 0, True, 0, 1), "9 samples do not fill one batch of 10; choose a smaller batch"),
        ((0, 10, 0, False, 0, 1), "0 samples do not fill one batch"),
    ],
)
def test_impossible_plans_are_refused(arguments, message):
    with pytest.raises(DataError, match=message):
        Plan(*arguments)
