"""Verdicts on real records whose figures are replaced by chosen ones, so that every outcome is met."""

import re
from dataclasses import replace

import pytest

from timestepper.report.claims import Claim, Statement
from timestepper.report.groups import Group, group, task_of
from timestepper.report.records import Noise
from timestepper.report.verdicts import NOT_REPRODUCED, NOT_RUN, REPRODUCED, Verdict, headline, judge

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
    ("lstm", "plain", "state", "against"),
    [
        ([6.9, 7.0, 6.8], [8.6, 8.8, 8.7], REPRODUCED, False),
        ([8.6, 8.8, 8.7], [6.9, 7.0, 6.8], NOT_REPRODUCED, True),
        ([6.9, 9.0, 8.0], [7.2, 8.8, 8.1], NOT_REPRODUCED, False),
        ([6.9], [8.7], NOT_RUN, False),
    ],
)
def test_a_difference_counts_only_beyond_doubt(records, lstm, plain, state, against):
    groups = [with_errors(records[0], "plain", plain), with_errors(records[0], "lstm", lstm)]
    (verdict,) = decide(LOWER, groups)
    assert (verdict.state, verdict.against) == (state, against)
    assert ("speaks against it" in verdict.detail, "leaves it open" in verdict.detail) == (
        against,
        state == NOT_REPRODUCED and not against,
    )
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

    def over_training(subject, errors, last):
        found = with_errors(records[0], subject, last)
        epochs = [{"epoch": n, "test": {"error": e / 100}} for n, e in enumerate(errors, 1)]
        return replace(found, runs={s: replace(r, epochs=tuple(epochs)) for s, r in found.runs.items()})

    plain, lstm = over_training("plain", [40, 20], [5, 5]), over_training("lstm", [30, 28], [9, 9])
    (verdict,) = decide(whole, [plain, lstm])
    assert verdict.state == REPRODUCED
    assert verdict.detail.startswith("error averaged over all epochs: difference \N{MINUS SIGN}1.00 points")
    sparse = {s: replace(r, epochs=({"epoch": 1}, *r.epochs[1:])) for s, r in lstm.runs.items()}
    assert decide(whole, [plain, replace(lstm, runs=sparse)])[0].state == NOT_RUN


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


def test_another_data_set_is_another_place(records):
    elsewhere = replace(LOWER, on=({"data": "cifar10", "model": "cifar/resnet8"},))
    groups = [with_errors(records[0], "plain", [8, 8.1]), with_errors(records[0], "lstm", [7, 7.1])]
    assert [verdict.state for verdict in decide(elsewhere, groups)] == [NOT_RUN]


def test_the_paper_s_own_task_counts_first_and_then_its_own_network():
    good = Verdict(Claim("c", "Table 9", "a claim"), LOWER, REPRODUCED, "")
    bad = replace(good, state=NOT_REPRODUCED)
    assert headline([replace(good, stand_in=True), replace(bad, short=True)]) == [replace(bad, short=True)]
    assert headline([replace(bad, short=True), good]) == [good]
    assert headline([good, bad]) == headline([bad, good]) == [bad]
    missing = replace(good, state=NOT_RUN)
    assert headline([missing, replace(good, stand_in=True, short=True)]) == [replace(good, stand_in=True, short=True)]


def test_alike_means_that_the_whole_interval_is_small(records):
    statement = replace(LOWER, check="similar", margin=0.5)
    same = [with_errors(records[0], "plain", [8.0, 8.3, 8.1]), with_errors(records[0], "lstm", [8.1, 8.3, 8.2])]
    unsure = [with_errors(records[0], "plain", [8.0, 9.0, 8.1]), with_errors(records[0], "lstm", [8.9, 8.0, 8.2])]
    apart = [with_errors(records[0], "plain", [8.0, 8.1, 8.2]), with_errors(records[0], "lstm", [6.0, 6.1, 6.2])]
    assert decide(statement, same)[0].state == REPRODUCED
    assert [found.state for found in decide(statement, apart) + decide(statement, unsure)] == [NOT_REPRODUCED] * 2
    assert (decide(statement, apart)[0].against, decide(statement, unsure)[0].against) == (True, False)


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
    assert not verdict.against


def test_a_noise_level_that_speaks_against_a_statement_is_the_one_to_name(records):
    """At 0 the statement is left open by a wide interval, at 1 a narrow one speaks against it."""

    def measured(subject, without, within):
        found = with_errors(records[0], subject, [8, 8, 8])
        noises = [Noise((0.0, 1.0), ((a,), (b,)), ((1.0,), (1.0,))) for a, b in zip(without, within, strict=True)]
        return replace(found, runs={seed: replace(found.runs[seed], noise=noises[seed]) for seed in found.runs})

    plain = measured("plain", (0.10, 0.10, 0.10), (0.50, 0.50, 0.50))
    lstm = measured("lstm", (0.05, 0.10, 0.30), (0.52, 0.52, 0.53))
    (verdict,) = decide(replace(LOWER, quantity="noise_error", noise=(0.0, 1.0), gain=None), [plain, lstm])
    assert verdict.against
    assert "holds at 0 of 2 noise levels; weakest at 1: difference +2.33 points" in verdict.detail


def test_a_noise_level_that_nobody_measured_gives_no_verdict(records):
    statement = replace(LOWER, quantity="noise_error", noise=(1.0, 7.0), gain=None)
    plain, lstm = with_errors(records[0], "plain", [8, 8]), with_errors(records[0], "lstm", [7, 7])
    assert decide(statement, [noisy(plain, 0.5), noisy(lstm, 0.3)])[0].state == NOT_RUN


def test_loss_under_noise_is_not_error_under_noise(records):
    """The errors say the opposite of the losses."""

    def measured(subject, errors, losses):
        found = with_errors(records[0], subject, [8, 8])
        noise = Noise((0.0, 1.0), tuple((e,) for e in errors), tuple((loss,) for loss in losses))
        return replace(found, runs={seed: replace(record, noise=noise) for seed, record in found.runs.items()})

    groups = [measured("plain", (0.1, 0.2), (0.1, 3.0)), measured("lstm", (0.1, 0.9), (0.5, 2.0))]
    at_one = replace(LOWER, quantity="noise_loss", noise=(1.0,), gain=None)
    (verdict,) = decide(at_one, groups)
    assert verdict.state == REPRODUCED
    assert "difference \N{MINUS SIGN}1.00 [" in verdict.detail
    (verdict,) = decide(replace(at_one, quantity="noise_loss_rise", noise=()), groups)
    assert verdict.state == REPRODUCED
    assert verdict.detail.startswith("difference \N{MINUS SIGN}1.40 [")


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
    ends = (models[0], models[2])
    groups = [with_errors(records[0], "lstm", errors, m) for m, errors in zip(ends, ([9, 9.1], [8, 8.2]), strict=True)]
    (verdict,) = decide(falling, groups)
    assert verdict.state == REPRODUCED
    assert "depth 8, 32 (2 of 3 depths)" in verdict.detail
    (opposite,) = decide(replace(falling, direction="rising"), groups)
    assert (opposite.state, opposite.against) == (NOT_REPRODUCED, True)
    assert decide(falling, groups[:1])[0].state == NOT_RUN
    gap = replace(falling, group=None, low=LSTM, high=PLAIN)
    plain = [with_errors(records[0], "plain", [9, 9.1], model) for model in ends]
    assert decide(gap, groups + plain)[0].state == REPRODUCED


@pytest.mark.parametrize("direction", ["falling", "rising"])
def test_without_the_deepest_network_a_trend_is_told_and_not_judged(records, direction):
    models = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32")
    groups = [with_errors(records[0], "lstm", e, m) for m, e in zip(models, ([9, 9.1], [8, 8.2]), strict=False)]
    for over in (models, models[::-1]):  # whatever the order that a file has
        (verdict,) = decide(replace(TREND, over=over, direction=direction), groups)
        assert (verdict.state, verdict.against) == (NOT_RUN, False)
    (verdict,) = decide(replace(TREND, over=models, direction=direction), groups)
    assert re.fullmatch(r"so far \S+ points per doubling .*, 2 seeds; depth 8, 14 \(2 of 3 depths\)", verdict.detail)


def test_a_depth_that_one_seed_has_got_to_does_not_undo_what_several_say(records):
    models = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32", "cifar/resnet56")
    errors = ([9, 9.2], [20], [8, 8.3], [7, 7.1])
    groups = [with_errors(records[0], "lstm", found, model) for model, found in zip(models, errors, strict=True)]
    (without,) = decide(replace(TREND, over=(models[0], *models[2:])), groups)
    assert without.state == REPRODUCED
    (verdict,) = decide(replace(TREND, over=models), groups)
    assert verdict.state == REPRODUCED
    assert verdict.detail == f"{without.detail} (3 of 4 depths)"
    only = [with_errors(records[0], "lstm", found[:1], model) for model, found in zip(models, errors, strict=True)]
    (verdict,) = decide(replace(TREND, over=models), only)
    assert (verdict.state, "one seed gives" in verdict.detail) == (NOT_RUN, True)


TREND = replace(
    LOWER, check="trend", direction="falling", on=({"data": "digits"},), low=None, high=None, group=LSTM, gain=None
)


def test_a_trend_is_per_doubling_and_a_seed_without_a_depth_is_left_out(records):
    models = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32")
    errors = ([9, 9.2, 5], [8, 8.3, 6], [7, 7, 7])
    groups = [with_errors(records[0], "lstm", found, model) for model, found in zip(models, errors, strict=True)]
    two = replace(TREND, over=(models[0], models[2]))
    assert decide(two, groups)[0].detail.startswith("\N{MINUS SIGN}0.37 points per doubling of depth [")
    del groups[1].runs[2]
    (verdict,) = decide(replace(TREND, over=models), groups)
    assert verdict.state == REPRODUCED
    assert "2 seeds; depth 8, 14, 32" in verdict.detail


@pytest.mark.parametrize("direction", ["falling", "rising"])
def test_a_trend_counts_only_beyond_doubt(records, direction):
    shallow, deep = [9, 9], [7, 9.2]  # one seed falls much, the other rises a little
    if direction == "rising":
        shallow, deep = deep, shallow
    pairs = (("cifar/resnet8", shallow), ("cifar/resnet14", deep))
    groups = [with_errors(records[0], "lstm", errors, model) for model, errors in pairs]
    statement = replace(TREND, direction=direction, over=("cifar/resnet8", "cifar/resnet14"))
    (verdict,) = decide(statement, groups)
    assert (verdict.state, verdict.against) == (NOT_REPRODUCED, False)


def test_a_stand_in_s_trend_goes_over_networks_of_its_own(records):
    over = ("timm/resnet18", "timm/resnet34")
    stand_over = ("cifar/resnet8", "cifar/resnet14")
    statement = replace(
        TREND, on=({"data": "imagenet"},), over=over, stand_in=({"data": "digits"},), stand_over=stand_over
    )
    groups = [
        with_errors(records[0], "lstm", errors, m) for m, errors in zip(stand_over, ([9, 9.1], [8, 8.2]), strict=True)
    ]
    (verdict,) = decide(statement, groups)
    assert (verdict.state, verdict.stand_in) == (REPRODUCED, True)


def test_a_trend_of_step_sizes_is_one_of_their_mean(records):
    """In the deeper network the last stage has larger steps, which grow less."""
    statement = replace(TREND, quantity="last_stage_mean", direction="rising", over=("cifar/resnet8", "cifar/resnet14"))
    groups = [
        replace(with_steps(records[0], steps), task=replace(task_of(records[0]), model=model))
        for model, steps in zip(statement.over, ((0.2, 0.6), (0.8, 0.9)), strict=True)
    ]
    assert decide(statement, groups)[0].state == REPRODUCED


def with_steps(record, *last_stages, first=(0.5, 0.5)):
    """Two seeds with their step sizes in the last stage, alike where one is given, and the first of the first one."""
    runs = {}
    for seed in (0, 1):
        last = last_stages[seed % len(last_stages)]
        steps = {"layer1": ((first[seed],), (0.6,)), "layer2": tuple((value,) for value in last)}
        runs[seed] = replace(record, seed=seed, step_sizes=steps)
    return Group(task_of(record), "lstm", runs)


def test_step_sizes_near_a_value_and_growing(records):
    near = replace(LOWER, check="near", quantity="first_steps", group=LSTM, value=0.5, margin=0.05)
    growing = replace(LOWER, check="increasing", quantity="last_stage", group=LSTM)
    groups = [with_steps(records[0], (0.7, 0.8, 0.9))]
    assert [decide(statement, groups)[0].state for statement in (near, growing)] == [REPRODUCED, REPRODUCED]
    groups = [with_steps(records[0], (0.9, 0.8, 0.7), first=(0.7, 0.7))]
    assert [decide(statement, groups)[0].state for statement in (near, growing)] == [NOT_REPRODUCED, NOT_REPRODUCED]
    assert all(decide(statement, groups)[0].against for statement in (near, growing))
    # the means of two seeds are near enough and growing, but they are too far apart to be sure
    groups = [with_steps(records[0], (0.2, 0.5), (0.5, 0.4), first=(0.5, 0.41))]
    assert [decide(statement, groups)[0].state for statement in (near, growing)] == [NOT_REPRODUCED, NOT_REPRODUCED]
    assert not any(decide(statement, groups)[0].against for statement in (near, growing))


def test_figure_1_is_judged_on_the_real_solutions():
    from timestepper.cli.gather import solutions
    from timestepper.report import load_claims

    claims, _ = load_claims()
    found = judge({"fig1": claims["fig1"]}, [], solutions())
    assert [verdict.state for verdict in found] == [REPRODUCED] * 3
    assert {verdict.state for verdict in judge({"fig1": claims["fig1"]}, [])} == {NOT_RUN}


def test_a_solution_that_overshoots_is_unstable_and_fewer_steps_means_half():
    def judged(check, large, small=None):
        wanted = {"low": {"solution": "large"}, "high": {"solution": "small"}}
        statement = Statement("s", "text", check, "solution", **wanted)
        return decide(statement, [], {"large": large, "small": small or large})[0].state

    overshoots = {"values": [1.0, -3.0, 0.5], "steps": 6, "error": 1.0}
    shrinks = {"values": [1.0, -0.9, 0.5], "steps": 10, "error": 1.0}
    assert judged("unstable", overshoots) == judged("stable", shrinks) == REPRODUCED
    assert judged("stable", overshoots) == judged("unstable", shrinks) == NOT_REPRODUCED
    assert judged("fewer_steps", overshoots, shrinks) == NOT_REPRODUCED
    assert judged("fewer_steps", {**overshoots, "steps": 4}, shrinks) == REPRODUCED
