"""Cases that once got a verdict which the runs do not bear out: each was built by somebody who tried to fool it."""

from dataclasses import replace

import pytest
from made import DIGITS, LSTM, ended, noisy, statement, stepped, task, trained, verdict, verdicts

from timestepper.recipe.load import load
from timestepper.records.subject import subject
from timestepper.report.claims import Claim, Place, Side, load_claims
from timestepper.report.groups import Arm, Task
from timestepper.report.statistics import CONTRADICTED, EQUAL, MINUS, NOT_RUN, OPEN, SUPPORTED
from timestepper.report.verdicts import judge

LOWER = statement("lower")
DEPTHS = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet20", "cifar/resnet26")
SCATTER = (-0.1, 0.0, 0.1, 0.05, -0.05)


@pytest.fixture(scope="module")
def asked():
    """Every statement of the shipped claims."""
    return {statement.id: statement for claim in load_claims()[0].values() for statement in claim.statement}


def arm(controller, error, seeds=3, diverged=(), data="cifar10", model="cifar/resnet56", first=0, **conditions):
    """Runs around an error, in percent, on a task with these conditions: ``optimiser_lr=0.1``."""
    told = tuple((key.replace("_", ".", 1), value) for key, value in sorted(conditions.items()))
    where = Task(data, model, 120, 128, told)
    made = ended(controller, [error + each for each in SCATTER[:seeds]], where)
    runs = {first + seed: run for seed, run in made.runs.items()}
    return Arm(where, made.subject, runs, tuple(diverged))


def judged(found, *arms):
    """The main verdict, also on a question of ours."""
    (main,) = (each for each in judge({"c": Claim("c", "Ours", "t", statement=(found,))}, arms) if each.main)
    return main


# -- runs that diverged ------------------------------------------------------------------------------------------------


def test_three_survivors_of_a_hundred_decide_nothing_and_are_shown(asked):
    twice = asked["ours-gain-no-norms-twice"]
    place = {"model": "cifar/nf_resnet56", "optimiser_lr": "0.2", "first": 10}
    few = arm("gain", 8.0, diverged=range(200, 297), **place)
    found = judged(twice, few, arm("channel(0.1)", 8.5, 5, **place))
    assert found.state == OPEN
    assert found.detail.startswith(f"of the runs that ended: difference {MINUS}0.50 points [")
    assert found.detail.endswith("3 and 5 seeds; 97 runs diverged")
    assert judged(twice, replace(few, diverged=()), arm("channel(0.1)", 8.5, 5, **place)).state == SUPPORTED


def test_what_diverged_has_nothing_beside_it_where_the_other_side_has_old_seeds_only(asked):
    place = {"model": "cifar/nf_resnet56", "optimiser_lr": "0.2"}
    fresh = arm("gain", 8.0, diverged=(13,), first=10, **place)
    assert judged(asked["ours-gain-no-norms-twice"], fresh, arm("channel(0.1)", 8.5, **place)).state == NOT_RUN


@pytest.mark.parametrize("left", [2, 3])
def test_runs_that_diverged_in_another_precision_are_not_hidden_by_those_that_ended(left):
    place = replace(LOWER, on=(Place("cifar10", "cifar/resnet56"),))
    bf16, tf32 = ({"runtime_precision": f'"{kind}"'} for kind in ("bf16", "tf32"))
    arms = [arm("lstm", 6.0, 5, **bf16), arm("plain", 7.0, 5, **bf16), arm("plain", 7.0, **tf32)]
    ended_ones = arm("lstm", 6.0, left, **tf32)
    assert judged(place, *arms, ended_ones).state == SUPPORTED
    found = judged(place, *arms, replace(ended_ones, diverged=(5, 6, 7, 8)))
    assert (found.state, "; 4 runs diverged at " in found.detail) == (OPEN, True)


def test_a_depth_of_which_all_runs_diverged_is_not_called_not_run():
    keeps = statement("keeps", group=LSTM, over=DEPTHS, on=(DIGITS,), direction="falling")
    *most, deepest = at_depths(9, 8, 7, 6)
    assert verdict(keeps, *most).state == NOT_RUN
    found = verdict(keeps, *most, replace(deepest, runs={}, diverged=(0, 1, 2)))
    assert (found.state, "; 3 runs diverged; depth 8, 14, 20 (3 of 4 depths)" in found.detail) == (OPEN, True)


# -- settings that disagree --------------------------------------------------------------------------------------------

LR = {"runtime_precision": '"bf16"'}


def test_equal_in_one_precision_does_not_hide_a_gain_in_another():
    place = replace(LOWER, on=(Place("cifar10", "cifar/resnet56"),))
    same = [arm("lstm", 7.0, 5, **LR), arm("plain", 7.0, 5, **LR)]
    other = [arm("lstm", 5.0, runtime_precision='"tf32"'), arm("plain", 7.0, runtime_precision='"tf32"')]
    assert judged(place, *same).state == EQUAL
    found = judged(place, *same, *other)
    assert (found.state, found.detail.startswith("the settings differ in size; ")) == (OPEN, True)
    few = [arm(kind, 7.0, runtime_precision='"tf32"') for kind in ("lstm", "plain")]
    assert judged(place, *same, *few).state == EQUAL
    wide = [replace(few[0], runs={seed: ended("lstm", [e]).runs[0] for seed, e in enumerate((6, 7, 8))}), few[1]]
    found = judged(place, *same, *wide)  # which may be anything
    assert (found.state, found.detail.startswith("on average only, not in each setting; ")) == (OPEN, True)
    assert judged(place, *[arm("lstm", 6.0, 5, **LR), same[1]], *wide).state == SUPPORTED


def test_a_gain_in_most_settings_that_is_certainly_smaller_in_another_precision_is_open():
    place = replace(LOWER, on=(Place("cifar10", "cifar/resnet56"),))
    gain = [arm("lstm", 5.0, 5, **LR), arm("plain", 7.0, 5, **LR)]
    none = [arm(kind, 7.0, runtime_precision='"tf32"') for kind in ("lstm", "plain")]
    assert judged(place, *gain, *none).state == OPEN
    less = [arm("lstm", 6.0, runtime_precision='"tf32"'), none[1]]
    assert judged(place, *gain, *less).state == SUPPORTED  # each says it


def test_step_sizes_that_are_near_1_on_one_data_set_only_are_open(asked):
    """CIFAR-10: 0.28 away, CIFAR-100: 0.08."""
    near = asked["table4-near-one"]

    def last(away, data):
        where = Task(data, "cifar/resnet56", 120, 128)
        return stepped(*([[0.5], [1 - away + each / 50]] for each in SCATTER), where=where)

    assert judged(near, last(0.28, "cifar10")).state == CONTRADICTED
    assert judged(near, last(0.08, "cifar100")).state == SUPPORTED
    found = judged(near, last(0.28, "cifar10"), last(0.08, "cifar100"))
    assert (found.state, found.stand_in) == (OPEN, True)


def test_one_setting_against_another_is_told_also_where_their_means_leave_it_open():
    """Supported at one schedule and contradicted on other data; the mean of two schedules says nothing."""
    place = replace(LOWER, on=(Place("cifar10"),))
    ahead = [arm("lstm", 6.0, 5, **LR), arm("plain", 7.0, 5, **LR)]
    behind = [arm("lstm", 7.9, 5, model="cifar/resnet110", **LR), arm("plain", 7.0, 5, model="cifar/resnet110", **LR)]
    other = [arm("lstm", 8.0, runtime_precision='"tf32"'), arm("plain", 7.0, runtime_precision='"tf32"')]
    for settings in ([*ahead, *behind], [*ahead, *behind, *other], [*ahead, *other]):
        found = judged(place, *settings)
        assert (found.state, found.detail.count("the settings")) == (OPEN, 1)
        assert found.detail.startswith("the settings disagree; ")


def test_a_stand_in_is_every_resnet_that_was_run_on_either_data_set(asked):
    stand_ins = {found.stand_in for found in asked.values() if found.stand_in}
    assert stand_ins == {(Place("cifar10"), Place("cifar100"))}


def test_of_a_network_that_the_paper_does_not_have_no_setting_counts_as_the_paper_s():
    """Without warm-up a transformer is one condition nearer to the schedule of the paper's ResNets."""
    claims, _ = load_claims()
    (channel,) = (each for each in claims["ours"].statement if each.id == "ours-channel-transformer")
    own = {"model": "timm/vit_tiny_patch16_224", "optimiser_lr": "0.001", "model_options": f'"{channel.on[0].options}"'}
    warm, cold = ({**own, "schedule_warmup_epochs": f"{epochs}"} for epochs in (5.0, 0.0))
    ahead = [arm("channel(0.1)", 15, 5, **warm), arm("plain", 16, 5, **warm)]
    behind = [arm("channel(0.1)", 17, **cold), arm("plain", 16, **cold)]
    for arms, state in ((ahead, SUPPORTED), (behind, CONTRADICTED), ([*ahead, *behind], OPEN)):
        found = judge({"training": claims["training"], "c": Claim("c", "Ours", "t", statement=(channel,))}, arms)
        (main,) = (each for each in found if each.main)
        assert main.state == state
    assert main.detail.startswith("the settings disagree; ")


# -- which network a statement is about --------------------------------------------------------------------------------


def test_a_statement_that_names_a_kind_of_network_names_its_model():
    (ours,) = (claim for claim in load_claims()[0].values() if claim.ours)
    vit = load("study/vit").model
    for found in ours.statement:
        for place in found.on:
            if "without norms" in found.text.lower() or "norm-free" in found.text:
                assert place.model == "cifar/nf_resnet56", found.id
            elif "transformer" in found.text:
                assert (place.model, place.options) == (vit.name, vit.options), found.id
            else:
                assert place.model in ("", "cifar/resnet56"), found.id
    assert sum("transformer" in found.text for found in ours.statement) > 4


def test_networks_with_norms_have_no_part_in_what_is_said_of_those_without(asked):
    """Better by far with norms, and alike without."""
    without, lr = asked["ours-gain-no-norms"], {"optimiser_lr": "0.1", "first": 10}
    norms = [arm("gain", 6.6, **lr), arm("channel(0.1)", 7.9, **lr)]
    free = [arm(kind, 8.3, 5, model="cifar/nf_resnet56", **lr) for kind in ("gain", "channel(0.1)")]
    assert judged(without, *norms).state == NOT_RUN
    assert judged(without, *norms, *free).state == judged(without, *free).state == EQUAL


@pytest.mark.parametrize("model", ["cifar/nf_resnet56", "timm/vit_tiny_patch16_224", "timm/resnext50_32x4d"])
def test_other_networks_have_no_part_in_what_is_said_of_resnets(asked, model):
    half, plain = arm("plain", 6.0, 5), arm("plain", 7.0, 5)
    half = replace(half, subject=subject("plain", last_norm_init=0.5))
    for found in (asked["ours-half-start"], replace(LOWER, low=asked["ours-half-start"].low, on=(Place("cifar10"),))):
        assert judged(found, half, plain).state == SUPPORTED
        moved = [replace(each, task=replace(each.task, model=model)) for each in (half, plain)]
        assert judged(found, *moved).state == NOT_RUN


def test_a_network_with_other_options_is_another_network(asked):
    channel = asked["ours-channel-transformer"]
    own = {"model": "timm/vit_tiny_patch16_224", "optimiser_lr": "0.001"}
    wrong, right = ({**own, "model_options": f'"{options}"'} for options in ("depth=12", channel.on[0].options))
    assert judged(channel, arm("channel(0.1)", 15, **wrong), arm("plain", 16, **wrong)).state == NOT_RUN
    assert judged(channel, arm("channel(0.1)", 15, **right), arm("plain", 16, **right)).state == SUPPORTED
    shortcut = {"model_options": '"shortcut=projection"'}
    half = replace(arm("plain", 6.0, **shortcut), subject=subject("plain", last_norm_init=0.5))
    assert judged(asked["ours-half-start"], half, arm("plain", 7.0, **shortcut)).state == NOT_RUN


def test_networks_that_a_statement_names_itself_need_not_be_resnets():
    low, high = Side(controller="lstm", model="timm/resnet101"), Side(controller="plain", model="timm/seresnet101")
    better = statement("lower", low=low, high=high, on=(Place("imagenet"),))
    arms = [arm("lstm", 20, data="imagenet", model=low.model), arm("plain", 21, data="imagenet", model=high.model)]
    assert judged(better, *arms).state == SUPPORTED


# -- depths that are missing -------------------------------------------------------------------------------------------


def at_depths(*errors, kind="lstm"):
    return [ended(kind, [e + s for s in SCATTER[:3]], task(m)) for m, e in zip(DEPTHS, errors, strict=False)]


def test_depths_that_were_run_can_contradict_and_never_support():
    """What keeps falling may not rise between any two depths, whatever the missing ones do."""
    keeps = statement("keeps", group=LSTM, over=DEPTHS, on=(DIGITS,), direction="falling")
    found = verdict(keeps, *at_depths(7, 8, 9))
    assert (found.state, found.detail.startswith("so far ")) == (CONTRADICTED, True)
    assert verdict(keeps, *at_depths(9, 8, 7)).state == NOT_RUN
    diverged = [replace(each, diverged=(7,)) for each in at_depths(7, 8, 9)]
    assert verdict(keeps, *diverged).state == OPEN
    whole = [replace(each, task=replace(each.task, epochs=9)) for each in at_depths(9, 8, 7, 6)]
    assert verdict(keeps, *whole).state == SUPPORTED
    assert verdict(keeps, *whole, *at_depths(9, 8, 7)).state == SUPPORTED
    found = verdict(keeps, *whole, *at_depths(7, 8, 9))
    assert (found.state, found.detail.startswith("the settings disagree; ")) == (OPEN, True)


def test_a_slope_over_all_depths_is_not_contradicted_by_some():
    """It rises at first, and over all four it falls."""
    falls = statement("trend", group=LSTM, over=DEPTHS, on=(DIGITS,), direction="falling")
    assert verdict(falls, *at_depths(7, 7.5, 8)).state == NOT_RUN
    assert verdict(falls, *at_depths(7, 7.5, 8, 3)).state == SUPPORTED
    keeps = replace(falls, check="keeps")
    assert verdict(keeps, *at_depths(7, 7.05, 7.1)).state == NOT_RUN
    assert verdict(keeps, *at_depths(7, 7.05, 7.1, 3)).state == SUPPORTED
    gap = replace(falls, group=None, low=LSTM, high=Side(controller="plain"))
    behind = [*at_depths(9, 9, 7), at_depths(0, 0, 0, 7)[3]], [*at_depths(7, 7, 8, 8, kind="plain")]
    del behind[0][1]  # no matter: at the first depth it is behind for certain
    assert verdict(gap, *behind[0], *behind[1]).state == CONTRADICTED


def test_of_settings_that_all_lack_some_depths_none_is_picked_for_its_verdict():
    """Three seeds that rise, at one length, and five that fall, at another."""
    keeps = statement("keeps", group=LSTM, over=DEPTHS, on=(DIGITS,), direction="falling")
    rising, tasks = at_depths(7, 8, 9), [task(model, epochs=9) for model in DEPTHS]
    falling = [ended("lstm", [e + s for s in SCATTER], where) for e, where in zip((9, 8, 7), tasks, strict=False)]
    assert verdict(keeps, *rising).state == CONTRADICTED
    assert verdict(keeps, *falling).state == NOT_RUN
    found = verdict(keeps, *rising, *falling)
    assert (found.state, found.detail.startswith("the settings differ in size; so far ")) == (OPEN, True)
    deepest = ended("lstm", [6 + s for s in SCATTER], tasks[3])
    two = [replace(each, task=where) for each, where in zip(rising, tasks, strict=False)]
    assert verdict(keeps, *rising, two[0], deepest).state == CONTRADICTED  # the other does not have what contradicts
    few = [ended("lstm", [e, e + 0.1], where) for e, where in zip((9, 8, 7, 6), tasks, strict=True)]
    assert verdict(keeps, *at_depths(9, 8, 7), *few).state == OPEN  # as the whole one is
    longer = [replace(each, task=where) for each, where in zip(rising, tasks, strict=False)]
    found = verdict(keeps, *rising, *longer[:2])  # what both have
    assert (found.state, "certainly not at depth 14 minus 8" in found.detail) == (CONTRADICTED, True)
    assert "mean of 2 settings" in found.detail


def test_a_setting_that_lacks_a_noise_level_still_speaks_against():
    """Better by one point in one setting; worse by 13 in another, which was not measured at the strongest noise."""
    noise, levels = statement("lower", "noise_error", noise=(0.0, 0.5, 1.0)), (0.0, 0.5, 1.0)

    def measured(lstm, measured_at, **where):
        errors = {"lstm": lstm, "plain": 7.0}
        return [
            noisy(kind, *([e + s] * len(measured_at) for s in SCATTER), levels=measured_at, where=task(**where))
            for kind, e in errors.items()
        ]

    better, worse = measured(6.0, levels), measured(20.0, levels[:2], epochs=9)
    assert verdict(noise, *better).state == SUPPORTED
    found = verdict(noise, *worse)
    assert (found.state, found.detail.endswith("; not measured: noise 1")) == (CONTRADICTED, True)
    found = verdict(noise, *better, *worse)
    assert (found.state, found.detail.startswith("the settings disagree; ")) == (OPEN, True)
    found = verdict(noise, *measured(6.0, levels[:2]))
    assert (found.state, found.detail.startswith("so far holds for certain at 2 of 2; ")) == (NOT_RUN, True)


def test_a_setting_that_was_evaluated_less_often_still_speaks_against():
    whole, seldom = statement("lower", "training_error"), [None, *[1] * 19]

    def curves(lstm, shown, **where):
        errors = {"lstm": lstm, "plain": 7.0}
        return [
            trained(kind, *([each and e + s for each in shown] for s in SCATTER), where=task(**where))
            for kind, e in errors.items()
        ]

    ahead, behind = curves(6.0, [1] * 20), curves(20.0, seldom, epochs=9)
    assert verdict(whole, *ahead).state == SUPPORTED
    assert verdict(whole, *behind).state == CONTRADICTED
    found = verdict(whole, *ahead, *behind)
    assert (found.state, found.detail.startswith("the settings disagree; ")) == (OPEN, True)


def test_slopes_whose_interval_ends_at_0_are_open_as_differences_are():
    """Between no fall and one that is certain there is one whose interval ends at 0.00 in print."""
    falls = statement("trend", group=LSTM, over=DEPTHS[:2], on=(DIGITS,), direction="falling")
    first = ended("lstm", [8 + s for s in SCATTER], task(DEPTHS[0]))
    states = {}
    for fall in range(100):
        found = verdict(falls, first, ended("lstm", [8 - fall / 500 + s for s in SCATTER], task(DEPTHS[1])))
        states.setdefault(", 0.00], " in found.detail, set()).add(found.state)
    assert states == {True: {OPEN}, False: {OPEN, SUPPORTED}}


def test_what_is_certain_is_told_by_the_correction_that_decides():
    """Of three depths of four the pairs decide, and the slope, which waits for the fourth, is not counted."""
    keeps = statement("keeps", group=LSTM, over=DEPTHS, on=(DIGITS,), direction="falling")
    for step in range(400):
        most = 8.3 + step / 400
        errors = zip(DEPTHS, (8, most, 8.2), strict=False)
        at = [ended("lstm", [e + 3 * s for s in SCATTER], task(m)) for m, e in errors]
        found = verdict(keeps, *at)
        assert (found.state == CONTRADICTED) == ("certainly not at" in found.detail)
    assert found.state == CONTRADICTED


# -- words -------------------------------------------------------------------------------------------------------------


def test_seeds_are_told_arm_by_arm_and_equal_with_the_interval_that_decides():
    found = verdict(LOWER, ended("lstm", [6.9, 7.0, 6.8, 7.1, 6.7]), ended("plain", [8.6, 8.8, 8.7]))
    assert found.detail.endswith("], 5 and 3 seeds")
    same = verdict(LOWER, *(ended(kind, [7.0, 7.1, 7.2, 7.0]) for kind in ("lstm", "plain")))
    assert same.detail == f"difference 0.00 points (90% interval [{MINUS}0.13, +0.13]), 4 seeds"
    many = [
        ended(k, [e + s for s in SCATTER[:n]], task(epochs=n)) for k, e in (("lstm", 6), ("plain", 7)) for n in (3, 5)
    ]
    assert verdict(LOWER, *many).detail.endswith("], 3 to 5 seeds each; mean of 2 settings")


def test_what_cannot_be_decided_is_not_called_certain_in_the_words_either():
    """Two seeds that hardly differ; and five of which the interval ends at 0.00 without noise."""
    noise = statement("lower", "noise_error", noise=(0.0, 1.0))
    found = verdict(noise, noisy("lstm", (5, 20), (5.01, 20.01)), noisy("plain", (9, 10), (9.01, 10.01)))
    assert (found.state, found.detail.startswith("holds for certain at 0 of 2; weakest at")) == (OPEN, True)
    lstm, plain = [29.10, 30.08, 29.52, 29.55, 29.64], [30.77, 29.50, 30.54, 29.97, 30.34]
    found = verdict(noise, noisy("lstm", *((e, e) for e in lstm)), noisy("plain", *((e, 60 + e) for e in plain)))
    assert (found.state, ", 0.00]" in found.detail) == (OPEN, True)
    assert found.detail.startswith("holds for certain at 1 of 2; weakest at noise 0")
    found = verdict(noise, noisy("lstm", *((e, e) for e in plain)), noisy("plain", *((e, 60 + e) for e in lstm)))
    assert (found.state, "certainly not" in found.detail) == (OPEN, False)


def test_the_seeds_that_are_told_are_those_of_the_numbers_beside_them():
    noise = statement("lower", "noise_error", noise=(0.0, 1.0))
    lstm = noisy("lstm", *((5 + s, 20 + s) for s in SCATTER))
    without_noise = noisy("lstm", *((5 + s,) for s in SCATTER[:2]), levels=(0.0,)).runs
    some = replace(lstm, runs={**lstm.runs, **without_noise})
    found = verdict(noise, some, noisy("plain", *((9 + s, 20.5 + s) for s in SCATTER)))
    assert found.detail.endswith("], 3 and 5 seeds")  # at noise 1


def test_one_seed_is_told_with_its_arm():
    found = verdict(LOWER, ended("lstm", [6.0]), ended("plain", [6.8, 6.9, 7.0]))
    assert found.detail == f"difference {MINUS}0.90 points (one seed of lstm: no interval), 1 and 3 seeds"
    found = verdicts(LOWER, ended("lstm", [6.0]), ended("plain", [6.9]))[0]
    assert "(one seed of lstm and of plain: no interval), 1 seed" in found.detail
