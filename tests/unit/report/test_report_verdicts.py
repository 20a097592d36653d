"""Verdicts on built cases, so that every outcome of every check is met, and on the ones that once came out wrong."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from made import (
    DIGITS,
    LSTM,
    PLACE,
    PLAIN,
    asked_together,
    ended,
    noisy,
    statement,
    stepped,
    task,
    trained,
    verdict,
    verdicts,
)

from timestepper.records.subject import subject
from timestepper.report.claims import Claim, Place, Side, load_claims
from timestepper.report.groups import group
from timestepper.report.statistics import CONTRADICTED, EQUAL, NO_EFFECT, NOT_RUN, OPEN, SUPPORTED
from timestepper.report.verdicts import headline, judge

LOWER = statement("lower", gain=0.5)
CIFAR = Place("cifar10")
DEPTHS = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32", "cifar/resnet56")


def deep(check, *, over=DEPTHS, direction="falling", **keys):
    return statement(check, over=over, direction=direction, on=(DIGITS,), **keys)


def at_depths(subject, *errors, spread=(-0.1, 0.0, 0.1), over=DEPTHS):
    """For every depth a group whose seeds scatter around an error."""
    return [ended(subject, [e + s for s in spread], task(m)) for m, e in zip(over, errors, strict=False)]


# -- a difference ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lstm", "plain", "state"),
    [
        ([6.9, 7.0, 6.8], [8.6, 8.8, 8.7], SUPPORTED),
        ([8.6, 8.8, 8.7], [6.9, 7.0, 6.8], CONTRADICTED),
        ([6.9, 9.0, 8.0], [7.2, 8.8, 8.1], OPEN),
        ([7.0, 7.1, 7.2, 7.0], [7.1, 7.0, 7.2, 7.1], EQUAL),
        ([6.8, 6.81, 6.8], [7.0, 7.01, 7.0], SUPPORTED),  # small but certain
        ([6.9, 7.0], [8.6, 8.8], OPEN),  # two seeds never decide
        ([6.9], [8.7], OPEN),
        ([7.1, 7.1, 7.1], [8.3, 8.3, 8.3], OPEN),  # nor do seeds that do not differ at all
    ],
)
def test_a_difference_has_four_states(lstm, plain, state):
    found = verdict(LOWER, ended("plain", plain), ended("lstm", lstm))
    assert found.state == state
    assert "seed" in found.detail
    assert "the paper has \N{MINUS SIGN}0.50" in found.detail


def test_two_seeds_with_equal_differences_are_no_certainty():
    """Once an interval of width zero: both are better by exactly one point."""
    found = verdict(LOWER, ended("plain", [8.0, 9.0]), ended("lstm", [7.0, 8.0]))
    assert found.state == OPEN
    assert "[\N{MINUS SIGN}1.00, \N{MINUS SIGN}1.00]" not in found.detail


def test_equal_is_about_points_and_not_about_losses():
    loss = statement("lower", "noise_loss_rise")
    plain, lstm = ([(10, e) for e in (20, 20.1, 20.2)], [(10, e) for e in (20.1, 20, 20.2)])
    assert verdict(loss, noisy("plain", *plain), noisy("lstm", *lstm)).state == OPEN


def test_step_size_0_01_that_is_worse_by_4_35_and_15_points_is_not_refuted():
    """The real errors: open at the paper's schedule, whose networks differ so much; supported by both schedules."""
    worse = statement("lower", low=PLAIN, high=Side(controller="fixed(0.01)"))
    long, short = task(epochs=300), task(epochs=120)
    slow = [ended("plain", [6.99, 5.91, 6.47], long), ended("fixed(0.01)", [11.38, 40.58, 21.53], long)]
    fast = [ended("plain", [7.37, 8.12, 7.21], short), ended("fixed(0.01)", [45.33, 42.75, 42.93], short)]
    assert verdict(worse, *slow).state == OPEN
    found = verdicts(worse, *slow, *fast)
    assert [each.state for each in found] == [OPEN, SUPPORTED, SUPPORTED]
    assert [each.main for each in found] == [False, False, True]
    assert "mean of 2 settings" in found[-1].detail


def test_a_caution_keeps_a_statement_open_until_another_precision_decides():
    careful = replace(LOWER, caution_in_bf16="TF32 has to decide")
    groups = [ended("plain", [8.6, 8.8, 8.7]), ended("lstm", [6.9, 7.0, 6.8])]
    bf16, tf32 = (moved(groups, conditions=(("runtime.precision", f'"{kind}"'),)) for kind in ("bf16", "tf32"))
    found = verdict(careful, *bf16)
    assert found.state == OPEN
    assert found.detail.endswith("; TF32 has to decide")
    for both in ([*bf16, *tf32], [*tf32, *moved(swapped(bf16), epochs=9), *swapped(bf16)]):
        decided = verdict(careful, *both)
        assert (decided.state, "TF32" in decided.detail) == (SUPPORTED, False)
    assert verdict(careful).state == NOT_RUN


def test_an_interval_that_ends_at_zero_in_print_decides_nothing():
    """p = 0.0496 by Welch's test, 0.07 by a permutation of the seeds: five networks on CIFAR-100."""
    groups = ended("plain", [30.77, 29.50, 30.54, 29.97, 30.34]), ended("lstm", [29.10, 30.08, 29.52, 29.55, 29.64])
    found = verdict(LOWER, *groups)
    assert (found.state, ", 0.00]" in found.detail) == (OPEN, True)
    assert verdict(LOWER, *swapped(groups)).state == OPEN
    clear = ended("lstm", [29.08, 30.06, 29.50, 29.53, 29.62])
    assert verdict(LOWER, groups[0], clear).state == SUPPORTED


def test_runs_that_diverged_keep_a_statement_open():
    plain, lstm = ended("plain", [8.6, 8.8, 8.7]), ended("lstm", [6.9, 7.0, 6.8])
    some = replace(lstm, diverged=(3, 4, 5, 6, 7, 8))
    assert verdict(LOWER, plain, lstm).state == SUPPORTED
    found = verdict(LOWER, plain, some)
    assert (found.state, "3 seeds; 6 runs diverged" in found.detail) == (OPEN, True)
    none = replace(lstm, runs={}, diverged=(0, 1, 2))
    found = verdict(LOWER, plain, none)
    assert (found.state, found.detail) == (OPEN, "3 runs diverged, too few are left")
    assert verdict(LOWER, none).state == NOT_RUN  # nothing to compare it with
    fresh = replace(LOWER, on=(replace(PLACE, first_seed=1),))
    early = [replace(ended("plain", [1, 8.6, 8.8, 8.7]), diverged=(0,)), ended("lstm", [9, 6.9, 7.0, 6.8])]
    assert verdict(fresh, *early).state == SUPPORTED


@pytest.mark.parametrize("left", [0, 2])
def test_a_setting_that_few_or_no_runs_survive_is_not_left_out_of_the_mean(left):
    """The other one would say supported without it."""
    plain, lstm = moved(BETTER, epochs=9)
    some = replace(lstm, runs=dict(list(lstm.runs.items())[:left]), diverged=tuple(range(left, 3)))
    assert verdict(LOWER, *BETTER, plain, lstm).state == SUPPORTED
    found = verdict(LOWER, *BETTER, plain, some)
    told = f"; {3 - left} run{'s' * (left == 0)} diverged at ResNet-8, digits, 9 epochs, batch 64"
    assert (found.state, found.detail.endswith(told)) == (OPEN, True)
    assert verdict(LOWER, *BETTER, some).state == SUPPORTED  # there was nothing to compare it with


# -- many comparisons at once ----------------------------------------------------------------------------------------

LEVELS = tuple(level / 10 for level in range(11))
NOISE = statement("lower", "noise_error", noise=LEVELS)


def at_levels(subject, shift, *, seeds=(-0.5, 0.0, 0.5)):
    """Errors that are shifted at each level, with a seed's luck on top."""
    return noisy(subject, *([10 + s + d for d in shift] for s in seeds), levels=LEVELS)


def test_noise_must_hold_at_every_level():
    plain = at_levels("plain", [0.0] * 11)
    assert verdict(NOISE, plain, at_levels("lstm", [-5.0] * 11)).state == SUPPORTED
    found = verdict(NOISE, plain, at_levels("lstm", [-5.0] * 10 + [-0.5]))
    assert found.state == OPEN
    assert "holds for certain at 10 of 11; weakest at noise 1: difference \N{MINUS SIGN}0.50 points" in found.detail


def test_one_of_eleven_levels_speaks_against_a_statement_only_after_a_correction():
    """+1.6 at one level alone would be certain, of eleven it is what chance gives; +9 is certain all the same."""
    plain = at_levels("plain", [0.0] * 11)
    once = at_levels("lstm", [0.0] * 10 + [1.6])
    assert verdict(replace(NOISE, noise=(1.0,)), plain, once).state == CONTRADICTED
    assert verdict(NOISE, plain, once).state == OPEN
    found = verdict(NOISE, plain, at_levels("lstm", [0.0] * 9 + [9.0, 0.0]))
    assert found.state == CONTRADICTED
    assert "certainly not at noise 0.9; weakest at noise 0.9" in found.detail


def test_a_noise_level_that_nobody_measured_gives_no_verdict_and_one_of_two_seeds_none_either():
    plain, lstm = noisy("plain", *[(5, 50 + s) for s in range(3)]), noisy("lstm", *[(5, 30 + s) for s in range(3)])
    at = [replace(NOISE, noise=noise) for noise in ((1.0,), (1.0, 0.7))]
    assert [verdict(each, plain, lstm).state for each in at] == [SUPPORTED, NOT_RUN]
    lstm.runs[2].noise = None
    assert verdict(at[0], plain, lstm).state == OPEN


def test_loss_under_noise_is_not_error_under_noise():
    plain, lstm = (
        noisy(kind, *[(low + s, high + 2 * s) for s in range(3)])
        for kind, low, high in (("plain", 10, 30), ("lstm", 16, 20))
    )
    for record in (*plain.runs.values(), *lstm.runs.values()):
        record.noise = replace(record.noise, error=record.noise.error[::-1])
    at_one = statement("lower", "noise_loss", noise=(1.0,))
    found = verdict(at_one, plain, lstm)
    assert (found.state, found.detail[:17]) == (SUPPORTED, "holds for certain")
    assert "difference \N{MINUS SIGN}1.00 [" in found.detail
    assert verdict(replace(at_one, quantity="noise_error"), plain, lstm).state == CONTRADICTED
    rise = verdict(replace(at_one, quantity="noise_loss_rise", noise=()), plain, lstm)
    assert rise.detail.startswith("difference \N{MINUS SIGN}1.60 [")


def test_ahead_for_ten_epochs_and_behind_for_290_is_not_ahead_during_the_whole_training():
    """Averaged over all epochs it is ahead by far."""
    whole = statement("lower", "training_error")
    plain = [[90 + s] * 10 + [10 + s / 10] * 290 for s in range(3)]
    lstm = [[20 + s] * 10 + [11 + s / 10] * 290 for s in range(3)]
    found = verdict(whole, trained("plain", *plain), trained("lstm", *lstm))
    assert found.state == CONTRADICTED
    assert "certainly not at 10 to 20% of the training" in found.detail
    ahead = [[e - 3 for e in curve] for curve in plain]
    assert verdict(whole, trained("plain", *plain), trained("lstm", *ahead)).state == SUPPORTED
    ahead[1][7] = None
    assert verdict(whole, trained("plain", *plain), trained("lstm", *ahead)).state == OPEN
    assert verdict(whole, trained("plain", [9] * 5), trained("lstm", [8] * 5)).state == NOT_RUN
    late = [[e - 3 for e in curve[:-10]] + [curve[-1] + 1] * 10 for curve in plain]
    assert "certainly not at the end" in verdict(whole, trained("plain", *plain), trained("lstm", *late)).detail


# -- alike -----------------------------------------------------------------------------------------------------------


def test_alike_means_that_the_whole_interval_is_small():
    alike, plain = statement("similar"), ended("plain", [8.0, 8.1, 8.05, 8.1])
    assert verdict(alike, plain, ended("lstm", [8.1, 8.0, 8.05, 8.1])).state == SUPPORTED
    assert verdict(alike, plain, ended("lstm", [6.0, 6.1, 6.2])).state == CONTRADICTED
    assert verdict(alike, plain, ended("lstm", [9.0, 9.1, 9.2])).state == CONTRADICTED
    assert verdict(alike, plain, ended("lstm", [8.9, 8.0, 8.2])).state == OPEN


# -- depth -----------------------------------------------------------------------------------------------------------


def test_a_trend_is_judged_over_the_depths_that_were_run():
    falling = deep("trend", group=LSTM)
    groups = at_depths("lstm", 9, 8.5, 8, 7.5)
    assert verdict(falling, *groups).state == SUPPORTED
    found = verdict(falling, groups[0], groups[3])  # the others may have diverged
    assert found.state == NOT_RUN
    assert "depth 8, 56 (2 of 4 depths)" in found.detail
    assert verdict(replace(falling, direction="rising"), *groups).state == CONTRADICTED
    assert verdict(falling, groups[0]).state == NOT_RUN
    two = replace(falling, over=DEPTHS[::3])
    unsure = [ended("lstm", errors, task(m)) for m, errors in zip(DEPTHS[::3], ([9, 9, 9.1], [7, 9.2, 9]), strict=True)]
    assert [verdict(replace(two, direction=d), *unsure).state for d in ("falling", "rising")] == [OPEN, OPEN]


def test_a_trend_is_per_doubling_of_depth():
    found = verdict(deep("trend", group=LSTM, over=DEPTHS[::2]), *at_depths("lstm", 9, 7, over=DEPTHS[::2]))
    assert found.detail.startswith("\N{MINUS SIGN}1.00 points per doubling of depth [")


def test_without_the_deepest_network_a_trend_is_told_and_not_judged():
    for over in (DEPTHS, DEPTHS[::-1]):  # whatever the order that a file has
        found = verdict(deep("trend", group=LSTM, over=over), *at_depths("lstm", 9, 8, 7))
        assert (found.state, found.detail[:6]) == (NOT_RUN, "so far")
        assert found.detail.endswith("3 seeds; depth 8, 14, 32 (3 of 4 depths)")


@pytest.mark.parametrize("check", ["trend", "keeps"])
def test_a_depth_that_two_seeds_have_got_to_counts_as_missing(check):
    """Without it the curve falls; nobody knows what it does there."""
    groups = at_depths("lstm", 9, 8, 8, 7)
    groups[1] = ended("lstm", [30, 10], task(DEPTHS[1]))
    found = verdict(deep(check, group=LSTM), *groups)
    assert (found.state, "(3 of 4 depths)" in found.detail) == (NOT_RUN, True)
    few = [replace(each, runs={0: each.runs[0]}) for each in groups]
    assert verdict(deep("trend", group=LSTM), *few).state == OPEN


def test_a_curve_that_rises_again_does_not_keep_improving():
    """It falls by two points and then rises by one: the slope alone is below zero for certain."""
    keeps = deep("keeps", group=LSTM)
    back = at_depths("lstm", 10, 9, 8, 9)
    assert verdict(deep("trend", group=LSTM), *back).state == SUPPORTED
    found = verdict(keeps, *back)
    assert found.state == CONTRADICTED
    assert "certainly not at depth 56 minus 32" in found.detail
    assert verdict(keeps, *at_depths("lstm", 10, 9, 8, 7)).state == SUPPORTED
    assert verdict(keeps, *at_depths("lstm", 10, 9, 8, 8.3)).state == OPEN
    rising = replace(keeps, direction="rising")
    assert verdict(rising, *at_depths("lstm", 7, 8, 9, 10)).state == SUPPORTED
    assert verdict(rising, *at_depths("lstm", 7, 8, 9, 8)).state == CONTRADICTED


def test_a_controller_that_is_behind_at_every_depth_has_no_gap_that_widens():
    """Behind by 3, 2, 1 and then by half a point."""
    gap, plain = deep("trend"), at_depths("plain", 8, 8, 8, 8)
    found = verdict(gap, *plain, *at_depths("lstm", 11, 10, 9, 8.5))
    assert found.state == CONTRADICTED
    assert "at depth 56 +0.50 points" in found.detail
    assert verdict(gap, *plain, *at_depths("lstm", 7.9, 7.5, 7, 6)).state == SUPPORTED
    assert verdict(gap, *plain, *at_depths("lstm", 8.2, 8, 8, 7.95)).state == OPEN
    behind = verdict(gap, *plain, *at_depths("lstm", 11, 10, 9, 7.7))  # ahead at the deepest alone
    assert (behind.state, "certainly not at depth 8, depth 14, depth 32" in behind.detail) == (CONTRADICTED, True)
    narrower = verdict(gap, *plain, *at_depths("lstm", 8, 6, 5, 7))  # it has been larger
    assert (narrower.state, "certainly not at depth 56 minus 14" in narrower.detail) == (CONTRADICTED, True)


def test_a_stand_in_s_trend_goes_over_networks_of_its_own():
    asked = deep("trend", group=LSTM, over=("timm/resnet18", "timm/resnet34"), stand_over=DEPTHS)
    asked = replace(asked, on=(Place("imagenet"),), stand_in=(DIGITS,))
    found = verdict(asked, *at_depths("lstm", 9, 8, 7, 6))
    assert (found.state, found.stand_in) == (SUPPORTED, True)


def test_who_gains_most_gains_more_than_each_of_the_others():
    most, plain = deep("most", over=DEPTHS[:3]), at_depths("plain", 9, 9, 9)
    assert verdict(most, *plain, *at_depths("lstm", 5, 8, 7)).state == SUPPORTED
    assert verdict(most, *plain, *at_depths("lstm", 7, 8, 5)).state == CONTRADICTED
    assert verdict(most, *plain, *at_depths("lstm", 5, 8, 5)).state == OPEN
    assert verdict(most, *plain, *at_depths("lstm", 5, 8)).state == NOT_RUN


def test_two_networks_may_be_compared():
    low, high = Side(controller="lstm", model=DEPTHS[0]), Side(controller="plain", model=DEPTHS[1])
    asked = statement("lower", low=low, high=high, on=(DIGITS,))
    others = [*at_depths("plain", 1, 9), *at_depths("lstm", 7, 20)]
    assert verdict(asked, *others).state == SUPPORTED
    assert verdict(asked, *others[2:]).state == NOT_RUN


# -- step sizes ------------------------------------------------------------------------------------------------------


def test_step_sizes_near_a_value():
    near = statement("near", "first_steps", group=LSTM, value=0.5, margin=0.05)
    stages = [[[0.5 + s, 0.9], [0.7 + s, 0.8]] for s in (0.01, 0.02, 0.0)]
    far = [[[0.7 + s, 0.5], [0.7, 0.8]] for s in (0.01, 0.02, 0.0)]
    assert verdict(near, stepped(*stages)).state == SUPPORTED
    assert verdict(near, stepped(*far)).state == CONTRADICTED
    assert verdict(near, stepped(*far[:1], *stages[:2])).state == OPEN
    assert verdict(replace(near, quantity="all_first_steps"), stepped(*stages)).state == CONTRADICTED
    last = replace(near, quantity="last_stage", value=0.75, margin=0.1)
    assert verdict(last, stepped(*[[[0.1], [0.7 + s, 0.74]] for s in (0.0, 0.01, 0.02)])).state == SUPPORTED
    assert verdict(last, stepped(*[[[0.1], [0.75, 0.5 + s]] for s in (0.0, 0.01, 0.02)])).state == CONTRADICTED


def test_step_sizes_that_grow_must_grow_in_every_block():
    """From first to last they all grow; the second stage of the middle one collapses in between."""
    growing = statement("increasing", "last_stage", group=LSTM, margin=0.05)

    def last(*blocks):
        return stepped(*[[[0.5], [b + s * (1 + n) for n, b in enumerate(blocks)]] for s in (-0.01, 0.0, 0.01)])

    assert verdict(growing, last(0.5, 0.6, 0.7, 0.8)).state == SUPPORTED
    assert verdict(growing, last(0.5, 0.6, 0.58, 0.8)).state == SUPPORTED  # a little is allowed
    assert verdict(growing, last(0.5, 0.9, 0.2, 0.6, 0.8, 0.95)).state == CONTRADICTED
    assert verdict(growing, last(0.8, 0.7, 0.6, 0.5)).state == CONTRADICTED
    assert verdict(growing, stepped([[0.5], [0.2, 0.5]], [[0.5], [0.5, 0.4]], [[0.5], [0.5, 0.5]])).state == OPEN


def test_a_trend_of_step_sizes_is_one_of_their_mean():
    """In the deeper network the last stage has larger steps, which grow less."""
    asked = deep("trend", quantity="last_stage_mean", direction="rising", group=LSTM, over=DEPTHS[:2])
    shallow = stepped(*[[[0.5], [0.2 + s, 0.6]] for s in (0, 0.01, 0.02)], where=task(DEPTHS[0]))
    wide = stepped(*[[[0.5], [0.8 + s, 0.9]] for s in (0, 0.01, 0.02)], where=task(DEPTHS[1]))
    assert verdict(asked, shallow, wide).state == SUPPORTED


# -- the bound -------------------------------------------------------------------------------------------------------


def bounded(order):
    """Ten kinds of network whose error rises under noise in this order of their bounds."""
    groups = []
    for rank, bound in enumerate(order):
        made = noisy(f"fixed({rank})", *[(50 - 3 * rank + s, 60 + s) for s in range(3)])
        for record in made.runs.values():
            record.stability = type("Growth", (), {"log_bound": (float(bound), 1.0)})
        groups.append(made)
    return groups


def test_a_bound_explains_robustness_if_it_orders_the_networks():
    ranks = statement("ranks", "noise_rise", noise=(1.0,), low=None, high=None)
    assert verdict(ranks, *bounded(range(10))).state == SUPPORTED
    assert verdict(ranks, *bounded(range(9, -1, -1))).state == CONTRADICTED
    found = verdict(ranks, *bounded([4, 9, 0, 3, 8, 1, 7, 2, 6, 5]))
    assert found.state == OPEN
    assert found.detail.endswith("; 10 kinds of network")
    assert verdict(ranks, *bounded(range(7))).state == NOT_RUN
    few = [replace(each, runs=dict(list(each.runs.items())[:2])) for each in bounded(range(10))]
    assert verdict(ranks, *few[:3], *bounded(range(10))[3:]).state == NOT_RUN  # seven kinds have seeds enough
    groups = bounded(range(10))
    for each in groups[:3]:
        each.runs[0].stability = None
    assert verdict(ranks, *groups).state == NOT_RUN


# -- among all statements ---------------------------------------------------------------------------------------------

SURE, LESS_SURE, UNSURE = ([6.8, 6.9, 7.0], [8.8, 8.9, 9.0]), ([6.6, 6.9, 7.2], [7.4, 7.7, 8.0]), ([7, 8, 9], [7, 8, 9])


def on_networks(*errors):
    """A statement about lstm and plain on each of several networks."""
    for model, (lstm, plain) in zip(DEPTHS, errors, strict=False):
        arms = (ended(arm, each, task(model)) for arm, each in (("lstm", lstm), ("plain", plain)))
        yield replace(LOWER, on=(Place("digits", model),)), *arms


def test_what_is_certain_by_itself_only_keeps_its_verdict_and_says_so():
    first, second, *_ = asked_together(*on_networks(SURE, LESS_SURE, UNSURE, UNSURE))
    assert (first.state, second.state) == (SUPPORTED, SUPPORTED)
    assert (first.alone, second.alone) == (False, True)
    assert "certain by itself" not in first.detail
    assert second.detail.endswith("; certain by itself, not among all 4 statements (p 0.06)")
    assert not any(each.alone for each in asked_together(*on_networks(LESS_SURE)))


def test_statements_that_nobody_ran_or_that_chance_has_no_part_in_do_not_count_among_all():
    unlucky = statement("lower", on=(CIFAR,))
    settled = statement("settled", "counts", state=NO_EFFECT, why="shown", by="a test")
    found = asked_together(*on_networks(LESS_SURE), *((each,) for each in [unlucky, settled] * 20))
    assert not found[0].alone


def test_a_statement_that_some_depths_could_have_contradicted_counts_among_all():
    """If only those counted that are contradicted, each of them would stay certain."""
    keeps = statement("keeps", over=DEPTHS, on=(Place("digits"),), direction="falling", group=LSTM)
    falling, rising = ([[9, 9.1, 9.2], [8, 8.1, 8.2]], [[8, 8.2, 8.4], [9, 9.2, 9.4]])

    def some_depths(data, errors):
        asked = replace(keeps, on=(Place(data),))
        return asked, *(ended("lstm", e, task(m, data=data)) for m, e in zip(DEPTHS, errors, strict=False))

    against, *others = asked_together(some_depths("a", rising), *(some_depths(d, falling) for d in "bcdefghi"))
    assert (against.state, {each.state for each in others}) == (CONTRADICTED, {NOT_RUN})
    assert "not among all 9 statements" in against.detail


def test_a_statement_about_two_places_is_contradicted_by_the_surer_of_them_counted_twice():
    places = [arm for _, *arms in on_networks(LESS_SURE, SURE) for arm in swapped(arms)]
    asked = replace(LOWER, on=tuple(Place("digits", model) for model in DEPTHS[:2]))
    *single, main = verdicts(asked, *places)
    assert main.state == CONTRADICTED
    assert main.p == pytest.approx(2 * min(each.p for each in single))


# -- where -----------------------------------------------------------------------------------------------------------

BETTER = [ended("plain", [8, 8.1, 8.2]), ended("lstm", [7, 7.1, 7.2])]


def moved(groups, **where):
    return [replace(each, task=replace(each.task, **where)) for each in groups]


def swapped(groups):
    return [replace(each, subject=subject({"plain": "lstm", "lstm": "plain"}[each.subject.kind])) for each in groups]


def test_real_runs_get_a_verdict_from_their_own_figures(records):
    (found,) = judge({"c": Claim("c", "Table 9", "a claim", statement=(LOWER,))}, group(records))
    assert found.state == OPEN
    assert "2 seeds" in found.detail
    assert found.where == "ResNet-8, digits, 2 epochs, batch 64"


def test_nothing_run_is_not_run():
    assert (verdict(LOWER).state, verdict(LOWER).where) == (NOT_RUN, "ResNet-8, digits")
    assert verdict(LOWER, BETTER[0]).state == NOT_RUN


def test_runs_of_other_conditions_are_never_compared():
    assert verdict(LOWER, BETTER[0], *moved(BETTER[1:], epochs=99)).state == NOT_RUN
    assert verdict(LOWER, *moved(BETTER, data="cifar10")).state == NOT_RUN


def test_a_stand_in_is_called_one_and_gives_way_to_the_paper_s_own_task():
    asked = replace(LOWER, on=(Place("digits", DEPTHS[1]),), stand_in=(PLACE,))
    found = verdict(asked, *BETTER)
    assert (found.state, found.stand_in) == (SUPPORTED, True)
    own = moved(swapped(BETTER), model=DEPTHS[1])
    found = verdict(asked, *BETTER, *own)
    assert (found.state, found.stand_in) == (CONTRADICTED, False)
    assert [each.state for each in verdicts(asked, *BETTER, *own)] == [CONTRADICTED, SUPPORTED]


def test_settings_of_the_same_question_are_averaged_and_none_is_picked():
    """Two settings that leave it open decide together; two that say the opposite leave it open together."""
    unsure = [ended("plain", [8, 8.8, 8.2]), ended("lstm", [7.4, 7.5, 8.0])]
    several = [*unsure, *moved(unsure, epochs=9), *moved(unsure, epochs=99)]
    assert verdict(LOWER, *unsure).state == OPEN
    assert verdict(LOWER, *several).state == SUPPORTED
    opposite = [*BETTER, *moved(swapped(BETTER), epochs=9)]
    assert [each.state for each in verdicts(LOWER, *opposite)] == [SUPPORTED, CONTRADICTED, OPEN]
    assert "the settings disagree" in verdict(LOWER, *opposite).detail
    half = [*BETTER, *moved([ended("plain", [5, 9, 13]), ended("lstm", [9, 5, 13])], epochs=9)]
    assert [each.state for each in verdicts(LOWER, *half)] == [SUPPORTED, OPEN, OPEN]
    assert "disagree" not in verdict(LOWER, *half).detail
    assert sum(each.main for each in verdicts(LOWER, *opposite)) == 1
    places = tuple(Place("digits", model) for model in DEPTHS[:2])
    stand_ins = replace(LOWER, on=(Place("imagenet"),), stand_in=places)
    found = verdict(stand_ins, *BETTER, *moved(BETTER, model=DEPTHS[1]))
    assert (found.state, found.stand_in, "mean of 2 settings" in found.detail) == (SUPPORTED, True, True)


def test_a_setting_with_few_seeds_or_another_optimiser_has_no_part_in_the_average():
    settings = [*BETTER, *moved(BETTER, epochs=9)]
    few = [ended("plain", [1], task(epochs=99)), ended("lstm", [9], task(epochs=99))]
    other = moved(swapped(BETTER), epochs=5, conditions=(("optimiser.lr", "0.4"),))
    found = verdicts(LOWER, *settings, *few)
    assert [each.state for each in found] == [SUPPORTED, SUPPORTED, OPEN, SUPPORTED]
    found = verdicts(LOWER, *settings, *few, *other)
    assert [each.state for each in found] == [SUPPORTED, SUPPORTED, OPEN, CONTRADICTED, OPEN]
    assert found[-1].detail.startswith("the settings disagree; ")


@pytest.mark.parametrize("conditions", [(("runtime.precision", '"tf32"'),), (("data_sha256", '"f00"'),)])
def test_other_conditions_do_not_take_the_place_of_those_with_more_seeds(conditions):
    many = [ended("plain", [8.6, 8.8, 8.7, 8.65, 8.75]), ended("lstm", [6.9, 7.0, 6.8, 6.85, 6.95])]
    one, three = (moved([ended("plain", e), ended("lstm", e)], conditions=conditions) for e in ([7], [7, 8, 9]))
    for others, name in ((one, "one seed"), (three, "an open verdict of three")):
        for groups in ([*many, *others], [*others, *many]):
            assert verdict(LOWER, *groups).state == SUPPORTED, name
    against = moved(swapped(BETTER), conditions=conditions)
    found = verdict(LOWER, *many, *against)
    assert (found.state, found.detail.startswith("the settings disagree; ")) == (OPEN, True)
    long = [ended("plain", [7], task(epochs=99)), ended("lstm", [9], task(epochs=99))]
    assert verdict(LOWER, *many, *long).state == SUPPORTED


def gap(size, epochs, scatter=1.0):
    """Nine networks of each, whose means are so far apart."""
    luck = [scatter * each for each in (-0.4, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.3, 0.4)]
    return [
        ended(s, [7 + apart + each for each in luck], task(epochs=epochs))
        for s, apart in (("plain", 0), ("lstm", size))
    ]


def test_settings_that_differ_are_not_averaged_into_a_verdict_that_none_of_them_has():
    assert verdict(LOWER, *gap(0.02, 2), *gap(-0.02, 3)).state == EQUAL
    found = verdict(LOWER, *gap(0.25, 2), *gap(-0.25, 3))  # each is open, the mean is 0.00
    assert (found.state, found.detail.startswith("the settings differ in size; ")) == (OPEN, True)
    found = verdict(LOWER, *gap(0.02, 2, 1.4), *gap(-0.02, 3, 1.4))  # the mean is equal, and each may be 0.3 away
    assert (found.state, found.detail.startswith("on average only, not in each setting; ")) == (OPEN, True)
    assert verdict(LOWER, *gap(0.02, 2), *gap(-3, 3)).state == OPEN  # the mean is -1.5
    assert verdict(LOWER, *gap(-1, 2), *gap(-3, 3)).state == SUPPORTED
    assert verdict(LOWER, *gap(-0.35, 2), *gap(-0.05, 3)).state == SUPPORTED  # supported and equal are no opposites


def test_a_schedule_with_all_depths_counts_before_the_paper_s_with_some():
    """At one length all depths were run, at the other two."""
    claims, _ = load_claims()
    falling = replace(deep("keeps", group=LSTM), on=(Place("cifar10"),))
    groups = moved(at_depths("lstm", 9, 8, 7, 8), data="cifar10", epochs=120)
    groups += moved([at_depths("lstm", 9, 8, 7, 6)[n] for n in (0, 3)], data="cifar10", epochs=300)
    asked = {"training": claims["training"], "c": Claim("c", "Table 9", "a claim", statement=(falling,))}
    (found,) = headline(judge(asked, groups))
    assert (found.state, found.short) == (CONTRADICTED, True)


def at_rate(arms, lr):
    return moved(arms, data="cifar10", conditions=(("optimiser.lr", str(lr)),))


@pytest.mark.parametrize("usual", [0.1, 0.4])
def test_the_paper_s_learning_rate_counts_before_others(usual):
    """Whichever of them stands first, and however many seeds the others have."""
    training = load_claims()[0]["training"]
    there = replace(training, schedule=[replace(s, optimiser={"lr": usual}) for s in training.schedule])
    asked = {"training": there, "c": Claim("c", "Table 9", "a claim", statement=(replace(LOWER, on=(CIFAR,)),))}
    groups = [*at_rate(BETTER, 0.1), *at_rate(swapped(BETTER), 0.4)]
    for arms in (groups, groups[::-1]):
        (found,) = headline(judge(asked, arms))
        assert found.state == (SUPPORTED if usual == 0.1 else CONTRADICTED)


def test_a_statement_may_be_about_one_learning_rate():
    groups = [*at_rate(BETTER, 0.1), *at_rate(swapped(BETTER), 0.4)]
    for rate, state in ((0.1, SUPPORTED), (0.4, CONTRADICTED), (0.2, NOT_RUN)):
        (found,) = verdicts(replace(LOWER, on=(replace(CIFAR, lr=rate),)), *groups)
        assert found.state == state
    assert found.where == f"CIFAR-10, learning rate {rate}"


def test_a_statement_may_be_about_training_with_warm_up():
    def warmed(arms, epochs):
        return moved(arms, data="cifar10", conditions=(("schedule.warmup_epochs", str(epochs)),))

    groups = [*warmed(BETTER, 0.0), *warmed(swapped(BETTER), 1.0)]
    for epochs, state in ((0, SUPPORTED), (1, CONTRADICTED), (5, NOT_RUN)):
        (found,) = verdicts(replace(LOWER, on=(replace(CIFAR, warmup=epochs),)), *groups)
        assert found.state == state
    assert found.where == "CIFAR-10, warm-up 5 epochs"


def test_seeds_that_chose_what_to_compare_do_not_count():
    groups = [ended("plain", [1, 1.1, 1.2, 8.6, 8.8, 8.7]), ended("lstm", [9, 9.1, 9.2, 6.9, 7.0, 6.8])]
    fresh = replace(LOWER, on=(replace(PLACE, first_seed=3),))
    assert (verdict(LOWER, *groups).state, verdict(fresh, *groups).state) == (OPEN, SUPPORTED)
    assert verdict(replace(LOWER, on=(replace(PLACE, first_seed=6),)), *groups).state == NOT_RUN


def test_seeds_that_were_added_later_do_not_count():
    groups = [ended("plain", [8.6, 8.8, 8.7, 1, 1.1, 1.2]), ended("lstm", [6.9, 7.0, 6.8, 9, 9.1, 9.2])]
    planned = replace(LOWER, on=(replace(PLACE, last_seed=2),))
    assert (verdict(LOWER, *groups).state, verdict(planned, *groups).state) == (OPEN, SUPPORTED)


def test_a_statement_about_two_data_sets_is_not_headed_by_one():
    both = replace(LOWER, on=(PLACE, Place("cifar10", "cifar/resnet8")))
    found = verdict(both, *BETTER)
    assert found.state == OPEN
    assert found.detail == "ResNet-8, digits: supported; ResNet-8, CIFAR-10: not run"
    assert verdict(both, *BETTER, *moved(BETTER, data="cifar10")).state == SUPPORTED
    assert verdict(both, *BETTER, *moved(swapped(BETTER), data="cifar10")).state == CONTRADICTED
    assert verdict(both).state == NOT_RUN


def test_a_question_of_ours_is_answered_and_not_counted_among_the_paper_s():
    """It is about every network and schedule on a data set, and all of them are averaged."""
    asked = replace(LOWER, on=(DIGITS,))
    claim = Claim("c", "Ours", "a question", ours=True, statement=(asked,))
    found = judge({"c": claim}, [*BETTER, *moved(BETTER, model=DEPTHS[1])])
    assert [each.main for each in found] == [False, False, True]
    assert "mean of 2 settings" in found[-1].detail
    assert headline(found) == []


def test_what_needs_no_run_says_who_shows_it():
    settled = statement("settled", "", state=NO_EFFECT, why="batch norm cancels it", by="tests/x.py")
    found = verdict(settled, *BETTER)
    assert (found.state, found.detail) == (NO_EFFECT, "batch norm cancels it (tests/x.py)")


# -- Figure 1 --------------------------------------------------------------------------------------------------------


def test_figure_1_is_judged_on_the_real_solutions():
    from timestepper.cli.gather import solutions

    claims, _ = load_claims()
    found = judge({"fig1": claims["fig1"]}, [], solutions())
    assert [each.state for each in found] == [SUPPORTED] * 3
    assert {each.state for each in judge({"fig1": claims["fig1"]}, [])} == {NOT_RUN}


def test_a_solution_that_overshoots_is_unstable_and_fewer_steps_means_half():
    def judged(check, large, small=None):
        sides = {"low": Side(solution="large"), "high": Side(solution="small")}
        asked = statement(check, "solution", on=(), **sides)
        return verdicts(asked, solutions={"large": ("", large), "small": ("", small or large)})[0].state

    overshoots = SimpleNamespace(values=[1.0, -3.0, 0.5], steps=6, error=1.0)
    shrinks = SimpleNamespace(values=[1.0, -0.9, 0.5], steps=10, error=1.0)
    assert judged("unstable", overshoots) == judged("stable", shrinks) == SUPPORTED
    assert judged("stable", overshoots) == judged("unstable", shrinks) == CONTRADICTED
    assert judged("fewer_steps", overshoots, shrinks) == CONTRADICTED
    overshoots.steps = 4
    assert judged("fewer_steps", overshoots, shrinks) == SUPPORTED
