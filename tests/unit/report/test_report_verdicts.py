"""Verdicts on real records whose figures are replaced by chosen ones, so that every outcome is met."""

from dataclasses import replace

import pytest

from timestepper.report.claims import Claim, Statement
from timestepper.report.groups import Group, group, subject_of, task_of
from timestepper.report.records import Noise
from timestepper.report.verdicts import NOT_REPRODUCED, NOT_RUN, REPRODUCED, headline, judge

HERE = ({"data": "digits", "model": "cifar/resnet8"},)
PLAIN, LSTM = {"controller": "plain"}, {"controller": "lstm"}
LOWER = Statement("s", "lower", "lower", "test_error", low=LSTM, high=PLAIN, on=HERE, gain=0.5)


def decide(statement, groups, solutions=None):
    claim = Claim("c", "Table 9", "a claim", statement=(statement,))
    return judge({"c": claim}, groups, solutions)


def with_errors(record, subject, errors, model=None):
    """A group of one subject whose runs end with these test errors, in percent."""
    task = task_of(record)
    if model:
        task = replace(task, model=model)
    runs = {
        seed: replace(
            record, seed=seed, noise=None, final={**record.final, "test": {"error": error / 100, "loss": 1.0}}
        )
        for seed, error in enumerate(errors)
    }
    return Group(task, subject, runs)


@pytest.mark.parametrize(
    ("lstm", "plain", "state"),
    [
        ([6.9, 7.0, 6.8], [8.6, 8.8, 8.7], REPRODUCED),
        ([8.6, 8.8, 8.7], [6.9, 7.0, 6.8], NOT_REPRODUCED),
        ([6.9, 9.0, 8.0], [7.2, 8.8, 8.1], NOT_REPRODUCED),
        ([6.9], [8.7], NOT_RUN),
    ],
)
def test_a_difference_counts_only_beyond_doubt(records, lstm, plain, state):
    groups = [with_errors(records[0], "plain", plain), with_errors(records[0], "lstm", lstm)]
    (verdict,) = decide(LOWER, groups)
    assert verdict.state == state
    assert "seed" in verdict.detail
    if state == REPRODUCED:
        assert "\N{MINUS SIGN}1.80 points" in verdict.detail
        assert "the paper has \N{MINUS SIGN}0.50" in verdict.detail


def test_real_runs_get_a_verdict_from_their_own_figures(records):
    (verdict,) = decide(LOWER, group(records))
    assert verdict.state in (REPRODUCED, NOT_REPRODUCED)
    assert "2 seeds" in verdict.detail
    assert verdict.where == "ResNet-8, digits, 2 epochs, batch 64"


def test_nothing_run_is_not_yet_run(records):
    (verdict,) = decide(LOWER, [])
    assert (verdict.state, verdict.where) == (NOT_RUN, "ResNet-8, digits")
    (verdict,) = decide(LOWER, [with_errors(records[0], "plain", [1, 2])])
    assert verdict.state == NOT_RUN


def test_the_whole_training_needs_every_epoch(records):
    whole = replace(LOWER, quantity="mean_test_error", gain=None)
    groups = group(records)
    assert decide(whole, groups)[0].detail.startswith("error averaged over all epochs: difference")
    sparse = replace(records[0], epochs=({"epoch": 1, "train": {"loss": 1.0}}, *records[0].epochs[1:]))
    others = [found for found in groups if found.runs[0].path != records[0].path]
    mixed = [Group(task_of(sparse), subject_of(sparse.recipe), {0: sparse}), *others]
    assert decide(whole, mixed)[0].state == NOT_RUN


def test_runs_of_other_conditions_are_never_compared(records):
    plain = with_errors(records[0], "plain", [8.6, 8.8, 8.7])
    other = with_errors(records[0], "lstm", [6.9, 7.0, 6.8])
    other = replace(other, task=replace(other.task, epochs=99))
    assert [verdict.state for verdict in decide(LOWER, [plain, other])] == [NOT_RUN]


def test_a_stand_in_is_called_one_and_gives_way_to_the_paper_s_own_task(records):
    elsewhere = ({"data": "digits", "model": "cifar/resnet14"},)
    statement = replace(LOWER, on=elsewhere, stand_in=HERE)
    better = [with_errors(records[0], "plain", [8, 8.1]), with_errors(records[0], "lstm", [7, 7.1])]
    (verdict,) = decide(statement, better)
    assert verdict.stand_in
    assert verdict.state == REPRODUCED
    worse = [
        with_errors(records[0], "plain", [7, 7.1], "cifar/resnet14"),
        with_errors(records[0], "lstm", [8, 8.1], "cifar/resnet14"),
    ]
    (chosen,) = headline(decide(statement, better + worse))
    assert (chosen.state, chosen.stand_in) == (NOT_REPRODUCED, False)


def test_alike_means_that_the_whole_interval_is_small(records):
    statement = replace(LOWER, check="similar", margin=0.5)
    same = [with_errors(records[0], "plain", [8.0, 8.3, 8.1]), with_errors(records[0], "lstm", [8.1, 8.3, 8.2])]
    unsure = [with_errors(records[0], "plain", [8.0, 9.0, 8.1]), with_errors(records[0], "lstm", [8.9, 8.0, 8.2])]
    apart = [with_errors(records[0], "plain", [8.0, 8.1, 8.2]), with_errors(records[0], "lstm", [6.0, 6.1, 6.2])]
    assert decide(statement, same)[0].state == REPRODUCED
    assert decide(statement, apart)[0].state == NOT_REPRODUCED
    assert decide(statement, unsure)[0].state == NOT_REPRODUCED


def noisy(group_, rise):
    """The group with a noise table whose error rises by ``rise`` at level 1."""
    noise = Noise((0.0, 1.0), ((0.05,), (0.05 + rise,)), ((0.2,), (0.2 + rise,)))
    runs = {
        seed: replace(record, noise=replace(noise, error=((0.05 + seed / 1000,), (0.05 + rise,))))
        for seed, record in group_.runs.items()
    }
    return replace(group_, runs=runs)


def test_noise_must_hold_at_every_level(records):
    statement = replace(LOWER, quantity="noise_error", noise=(1.0,), gain=None)
    plain, lstm = with_errors(records[0], "plain", [8, 8, 8]), with_errors(records[0], "lstm", [7, 7, 7])
    assert decide(statement, [plain, lstm])[0].state == NOT_RUN
    groups = [noisy(plain, 0.5), noisy(lstm, 0.3)]
    assert decide(statement, groups)[0].state == REPRODUCED
    (verdict,) = decide(replace(statement, noise=(0.0, 1.0)), groups)
    assert verdict.state == NOT_REPRODUCED
    assert "holds at 1 of 2 noise levels; weakest at 0" in verdict.detail


def test_a_noise_level_of_one_seed_gives_no_verdict(records):
    """An older record may have fewer levels; what the levels of all seeds say is then not said of every level."""
    statement = replace(LOWER, quantity="noise_error", noise=(1.0, 0.0), gain=None)
    plain = noisy(with_errors(records[0], "plain", [8, 8, 8]), 0.5)
    lstm = noisy(with_errors(records[0], "lstm", [7, 7, 7]), 0.3)
    runs = {
        seed: record if seed == 0 else replace(record, noise=Noise((1.0,), record.noise.error[1:], ((1.0,),)))
        for seed, record in lstm.runs.items()
    }
    (verdict,) = decide(statement, [plain, replace(lstm, runs=runs)])
    assert verdict.state == NOT_RUN
    assert "one seed" in verdict.detail


def test_a_trend_is_judged_over_the_depths_that_were_run(records):
    models = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32")
    falling = replace(
        LOWER,
        check="trend",
        direction="falling",
        over=models,
        on=({"data": "digits"},),
        low=None,
        high=None,
        group=LSTM,
    )
    groups = [
        with_errors(records[0], "lstm", errors, m) for m, errors in zip(models, ([9, 9.1], [8, 8.2]), strict=False)
    ]
    (verdict,) = decide(falling, groups)
    assert verdict.state == REPRODUCED
    assert "depth 8, 14 (2 of 3 depths)" in verdict.detail
    assert decide(replace(falling, direction="rising"), groups)[0].state == NOT_REPRODUCED
    assert decide(falling, groups[:1])[0].state == NOT_RUN
    gap = replace(falling, group=None, low=LSTM, high=PLAIN)
    plain = [with_errors(records[0], "plain", [9, 9.1], model) for model in models[:2]]
    assert decide(gap, groups + plain)[0].state == REPRODUCED


def with_steps(record, last_stage, first=0.5):
    steps = {"layer1": ((first,), (0.6,)), "layer2": tuple((value,) for value in last_stage)}
    runs = {seed: replace(record, seed=seed, step_sizes=steps) for seed in (0, 1)}
    return Group(task_of(record), "lstm", runs)


def test_step_sizes_near_a_value_and_growing(records):
    near = replace(LOWER, check="near", quantity="first_steps", group=LSTM, value=0.5, margin=0.05)
    growing = replace(LOWER, check="increasing", quantity="last_stage", group=LSTM)
    groups = [with_steps(records[0], (0.7, 0.8, 0.9))]
    assert [decide(statement, groups)[0].state for statement in (near, growing)] == [REPRODUCED, REPRODUCED]
    groups = [with_steps(records[0], (0.9, 0.8, 0.7), first=0.7)]
    assert [decide(statement, groups)[0].state for statement in (near, growing)] == [NOT_REPRODUCED, NOT_REPRODUCED]


def test_figure_1_is_judged_on_the_real_solutions():
    from timestepper.cli.gather import solutions
    from timestepper.report import load_claims

    claims, _ = load_claims()
    found = judge({"fig1": claims["fig1"]}, [], solutions())
    assert [verdict.state for verdict in found] == [REPRODUCED] * 3
    assert {verdict.state for verdict in judge({"fig1": claims["fig1"]}, [])} == {NOT_RUN}
