import pytest

from timestepper.engine.schedule import Schedule
from timestepper.errors import UnknownNameError


def test_paper_cifar_law_divides_by_ten_at_half_and_three_quarters():
    schedule = Schedule(lr=0.1, epochs=300, steps_per_epoch=782)
    boundaries = [(149, 0.1), (150, 0.01), (224, 0.01), (225, 0.001), (299, 0.001)]
    for epoch, rate in boundaries:
        assert schedule.rate(epoch * 782) == pytest.approx(rate)
        assert schedule.rate(epoch * 782 + 781) == pytest.approx(rate)


def test_paper_imagenet_law_divides_every_thirty_epochs():
    schedule = Schedule(lr=0.1, epochs=100, steps_per_epoch=10, every=30)
    assert [schedule.rate(epoch * 10) for epoch in (0, 29, 30, 60, 90, 99)] == pytest.approx(
        [0.1, 0.1, 0.01, 0.001, 0.0001, 0.0001]
    )


def test_warmup_rises_in_equal_parts_and_shifts_nothing():
    cold, warm = (Schedule(1.0, 10, 4, warmup_epochs=epochs) for epochs in (0, 1))
    assert [warm.rate(step) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(warm.rate(step) == cold.rate(step) for step in range(4, 40))


def test_a_drop_at_the_end_of_the_warmup_is_not_put_off():
    schedule = Schedule(1.0, 4, 5, every=2, warmup_epochs=2)
    assert schedule.rate(9) == pytest.approx(10 / 11)
    assert schedule.rate(10) == pytest.approx(0.1)


@pytest.mark.parametrize("warmup", [0, 2])
def test_cosine_falls_from_the_end_of_the_warmup_to_the_end_of_the_run(warmup):
    schedule = Schedule(1.0, 10, 10, law="cosine", warmup_epochs=warmup)
    assert schedule.rate(10 * warmup) == 1.0
    assert schedule.rate(50 + 5 * warmup) == pytest.approx(0.5)
    assert 0 < schedule.rate(99) < 0.001


def test_constant():
    assert {Schedule(0.3, 5, 3, law="constant").rate(step) for step in range(15)} == {0.3}


@pytest.mark.parametrize(
    ("law", "steps", "agrees"),
    [
        ({"law": "constant"}, 20, True),
        ({"every": 2}, 20, True),
        ({"milestones": (0.5,)}, 10, True),  # both are before their first drop
        ({"milestones": (0.5,)}, 11, False),
        ({"law": "cosine"}, 2, False),
    ],
)
def test_a_run_may_grow_where_the_rates_so_far_stay(law, steps, agrees):
    assert Schedule(0.1, 4, 5, **law).agrees(Schedule(0.1, 8, 5, **law), steps) is agrees


def test_an_unknown_law_is_no_other_law():
    with pytest.raises(UnknownNameError, match="no schedule is called 'step'; there are constant, steps, cosine"):
        Schedule(lr=0.1, epochs=1, steps_per_epoch=1, law="step")
