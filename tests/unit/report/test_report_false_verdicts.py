"""How often verdicts are wrong where the truth is known: thousands of made studies, judged as real ones are.

Every check is asked where there is no effect, with equal and unequal numbers of seeds and scatter. Power is stated
beside it: how often a real effect is seen, with the scatter of test errors that the records have, 0.2 to 0.5 points.
"""

from dataclasses import replace

import numpy as np
import pytest
from made import DIGITS, LSTM, PLACE, asked_together, ended, noisy, statement, stepped, task, trained, verdict
from scipy.stats import binom

from timestepper.records.subject import subject
from timestepper.report.claims import CHECKS, Place
from timestepper.report.statistics import CONTRADICTED, EQUAL, NOT_RUN, OPEN, SUPPORTED

STUDIES = 2000
FALSE = int(binom.ppf(0.999, STUDIES, 0.05))  # more is no luck if 5 % are false
LEVELS = tuple(level / 10 for level in range(11))
DEPTHS = ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32", "cifar/resnet56")
LOWER, NOISE = statement("lower"), statement("lower", "noise_error", noise=LEVELS)
DECIDED = (SUPPORTED, CONTRADICTED)


def count(make, *states, studies=STUDIES):
    """How many studies come out with one of the states."""
    rng = np.random.default_rng(7)
    return sum(verdict(*make(rng)).state in states for _ in range(studies))


def two_arms(seeds=(3, 3), scatter=(0.3, 0.3), effect=0.0, asked=LOWER):
    """The errors of lstm and plain; lstm is better by the effect."""

    def make(rng):
        lstm, plain = (rng.normal(7, each, n) for each, n in zip(scatter, seeds, strict=True))
        return asked, ended("lstm", lstm - effect), ended("plain", plain)

    return make


def with_outliers(seeds):
    """Plain networks as the nine of CIFAR-10 were, two of which ended far above the others; lstm has the same mean."""
    plain = np.array([7.37, 8.12, 7.21, 8.42, 7.47, 7.37, 7.39, 7.38, 7.35])

    def make(rng):
        return LOWER, ended("lstm", rng.normal(plain.mean(), 0.17, seeds)), ended("plain", rng.choice(plain, seeds))

    return make


def settings(number):
    def make(rng):
        arms = [
            ended(subject, rng.normal(7 + n, scatter, 3), task(epochs=n))
            for n in range(1, number + 1)
            for subject, scatter in (("lstm", 0.2), ("plain", 0.5))
        ]
        return LOWER, *arms

    return make


def two_settings(effects, seeds=(9, 3), scatter=0.2, asked=LOWER):
    """What nine and three seeds of each have made of two schedules, between which the effect changes."""

    def make(rng):
        arms = [
            ended(subject, rng.normal(7 - effect * (subject == "lstm"), scatter, number), task(epochs=number + place))
            for place, (effect, number) in enumerate(zip(effects, seeds, strict=True))
            for subject in ("lstm", "plain")
        ]
        return asked, *arms

    return make


def nine_and_three(rng):
    """Nine seeds of each at one schedule; three at the other, where one arm hardly scatters."""
    scatter = {("lstm", 9): 0.2, ("plain", 9): 0.2, ("lstm", 3): 0.01, ("plain", 3): 0.4}
    return LOWER, *(ended(s, rng.normal(7, each, n), task(epochs=n)) for (s, n), each in scatter.items())


def both_places(rng):
    asked = replace(LOWER, on=(PLACE, Place("cifar10", "cifar/resnet8")))
    places = (task(), task(data="cifar10"))
    return asked, *(ended(s, rng.normal(7, 0.3, 3), p) for p in places for s in ("lstm", "plain"))


def under_noise(shared):
    """A seed's luck is the same at all levels to this share."""

    def make(rng):
        def curves():
            luck = shared * rng.normal(size=(3, 1)) + np.sqrt(1 - shared**2) * rng.normal(size=(3, 11))
            return 40 + 2 * luck

        return NOISE, noisy("lstm", *curves(), levels=LEVELS), noisy("plain", *curves(), levels=LEVELS)

    return make


def in_training(rng):
    curves = (40 + rng.normal(size=(3, 1)) + rng.normal(size=(3, 20)) for _ in range(2))
    return statement("lower", "training_error"), *(
        trained(s, *c) for s, c in zip(("lstm", "plain"), curves, strict=True)
    )


def over_depth(check, errors=(7, 7, 7, 7), gap=False, seeds=3, scatter=0.3, **keys):
    sides = {} if gap else {"group": LSTM}
    asked = statement(check, over=DEPTHS, on=(DIGITS,), **{"direction": "falling"} | keys | sides)

    def make(rng):
        arms = ("lstm", "plain") if gap or check == "most" else ("lstm",)
        places = zip(DEPTHS, errors, *(np.broadcast_to(each, 4) for each in (scatter, seeds)), strict=True)
        found = [ended(subject, rng.normal(*luck), task(model)) for model, *luck in places for subject in arms]
        return asked, *found

    return make


def some_depths(errors):
    """Nobody has run the deepest."""
    whole = over_depth("keeps", (*errors, 0), seeds=9)
    return lambda rng: whole(rng)[:-1]


def widening(seeds):
    """At the depths of Figure 5 the gap grows from 0 to 2 points."""
    depths = (32, 56, 110, 146, 290, 362, 506)
    gaps = 2 * np.log(np.divide(depths, 32)) / np.log(506 / 32)
    models = [f"cifar/resnet{depth}" for depth in depths]
    asked = statement("trend", over=tuple(models), on=(DIGITS,), direction="falling")

    def make(rng):
        arms = [ended("plain", rng.normal(7, 0.3, seeds), task(model)) for model in models]
        for gap, model in zip(gaps, models, strict=True):
            arms.append(ended("lstm", rng.normal(7 - gap, 0.3, seeds), task(model)))
        return asked, *arms

    return make


def steps_from(*distances):
    """A schedule for each."""
    near = statement("near", "first_steps", group=LSTM, value=0.5, margin=0.05)

    def make(rng):
        for epochs, distance in enumerate(distances, 1):
            seeds = ([[0.5 + d], [0.8]] for d in rng.normal(distance, 0.005, 3))
            yield stepped(*seeds, where=task(epochs=epochs))

    return lambda rng: (near, *make(rng))


def flat_steps(rng):
    growing = statement("increasing", "last_stage", group=LSTM, margin=0.05)
    return growing, stepped(*([[0.5], list(blocks)] for blocks in rng.normal(0.7, 0.01, (3, 6))))


def falling_back(rng):
    """The step sizes grow on the whole, but the third block is 0.05 behind the second."""
    growing = statement("increasing", "last_stage", group=LSTM, margin=0.05)
    blocks = np.array([0.5, 0.7, 0.65, 0.9]) + rng.normal(0, 0.02, (3, 1)) * np.array([0, 1, 0, 0])
    return growing, stepped(*([[0.5], list(row)] for row in blocks))


def any_bound(*kinds, where=PLACE, between=0.0, schedules=False):
    """So many kinds of each architecture, or of one at each schedule, where a kind is nearly what it is at the others.

    Bound and rise have nothing to do with each other.
    """
    networks = [task(model) for model in ("cifar/resnet8", "cifar/resnet14", "cifar/resnet32")]
    places = [task(epochs=epochs) for epochs in (120, 300, 30)] if schedules else networks

    def make(rng):
        groups = []
        shared = 0.9 if schedules else 0.0
        kind = rng.normal(size=(max(kinds), 2))
        for place, number in zip(places, kinds, strict=False):
            own_bound, own_rise = rng.normal(0, between, 2)
            for each in range(number):
                bound, rise = shared * kind[each] + np.sqrt(1 - shared**2) * rng.normal(size=2)
                errors = 40 + 5 * (own_rise + rise) + rng.normal(0, 1, 3)
                made = noisy(f"fixed({each})", *((10, e) for e in errors), where=place)
                bound += own_bound
                for record in made.runs.values():
                    record.stability = type("Growth", (), {"log_bound": (bound,)})
                groups.append(made)
        return statement("ranks", "noise_rise", noise=(1.0,), low=None, high=None, on=(where,)), *groups

    return make


NO_EFFECT = {
    "three seeds": two_arms(),
    "three seeds, one arm scatters twice as much": two_arms(scatter=(0.2, 0.4)),
    "three seeds, one arm scatters four times as much": two_arms(scatter=(0.1, 0.4)),
    "three seeds, one arm hardly scatters": two_arms(scatter=(0.03, 0.5)),
    "nine seeds": two_arms((9, 9), (0.2, 0.4)),
    "seven and three seeds": two_arms((7, 3), (0.2, 0.4)),
    "nine and three seeds": two_arms((9, 3), (0.2, 0.5)),
    "two settings": settings(2),
    "four settings": settings(4),
    "two data sets": both_places,
    "eleven noise levels": under_noise(0.0),
    "eleven noise levels that go together": under_noise(0.9),
    "ten tenths of the training": in_training,
    "a slope": over_depth("trend"),
    "a gap": over_depth("trend", gap=True),
    "a flat curve": over_depth("keeps"),
    "who gains most": over_depth("most", gap=True),
    "flat step sizes": flat_steps,
    "a bound": any_bound(8),
    "a bound, one architecture of several": any_bound(14, 7, 2, between=2.0),
    "a bound, ten kinds at one schedule and four at another": any_bound(10, 4, between=2.0, schedules=True),
    "a bound, nine kinds at one schedule and eight at another": any_bound(9, 8, between=2.0, schedules=True),
}


@pytest.mark.parametrize("name", NO_EFFECT)
def test_where_there_is_no_effect_one_verdict_in_twenty_at_most_says_so(name):
    make = NO_EFFECT[name]
    asked, *groups = make(np.random.default_rng(0))
    assert verdict(asked, *groups).state != NOT_RUN
    assert count(make, *DECIDED) <= FALSE


@pytest.mark.parametrize("make", [nine_and_three, over_depth("trend", scatter=(0.2,) * 3 + (0.5,), seeds=(9, 9, 9, 3))])
def test_the_worst_cases_that_are_known_have_a_little_more(make):
    """A mean and a slope of which a part has few seeds and scatters, so that it counts the most."""
    assert count(make, *DECIDED) / STUDIES == pytest.approx(0.06, abs=0.02)


@pytest.mark.parametrize(("kinds", "share"), [((14, 7, 2), 0.375), ((10, 4), 0.21)])
def test_over_several_architectures_or_schedules_a_bound_would_be_judged_by_them(kinds, share):
    """Which is why kinds are ranked within one: a few architectures that differ are not many kinds."""
    mixed = any_bound(*kinds, where=DIGITS, between=2.0)

    def make(rng):
        asked, *groups = mixed(rng)
        return asked, *(replace(found, task=task(), subject=subject(f"fixed({n})")) for n, found in enumerate(groups))

    assert count(make, *DECIDED) / STUDIES == pytest.approx(share, abs=0.04)


@pytest.mark.parametrize(("seeds", "share"), [(3, 0.09), (5, 0.14), (9, 0.10)])
def test_outliers_on_one_side_cost_the_other_arm_more_than_the_promise(seeds, share):
    """Where few of them are drawn, plain looks better and steadier than it is; the controller is never favoured."""
    make = with_outliers(seeds)
    assert count(make, SUPPORTED) <= FALSE
    assert count(make, CONTRADICTED) / STUDIES == pytest.approx(share, abs=0.025)


EDGES = (
    ("equal where 0.3 points are between them", two_arms((9, 9), effect=0.3), EQUAL),
    ("equal, and the other way round", two_arms((9, 9), effect=-0.3), EQUAL),
    ("alike", two_arms((9, 9), effect=0.3, asked=statement("similar")), SUPPORTED),
    ("not alike", two_arms((9, 9), effect=0.3, asked=statement("similar")), CONTRADICTED),
    ("keeps falling, but for the last depth", over_depth("keeps", (9, 8, 7, 7.3), seeds=9), SUPPORTED),
    ("does not keep falling", over_depth("keeps", (7.9, 7.6, 7.3, 7.3), seeds=9), CONTRADICTED),
    ("equal, on either edge", two_settings((-0.3, 0.3)), EQUAL),
    ("equal, one outside", two_settings((-0.35, 0.1)), EQUAL),
    ("equal, the one with few seeds outside", two_settings((0.1, -0.35)), EQUAL),
    ("equal, one on the edge", two_settings((-0.3, 0.0), (9, 9)), EQUAL),
    ("alike, one on the edge", two_settings((-0.3, 0.0), (9, 9), asked=statement("similar")), SUPPORTED),
    ("near at one of two schedules", steps_from(0.05, 0.03), SUPPORTED),
    ("some depths", some_depths((7.9, 7.6, 7.6)), CONTRADICTED),
    ("near", steps_from(0.05), SUPPORTED),
    ("not near", steps_from(0.05), CONTRADICTED),
    ("grows in every block", falling_back, SUPPORTED),
    ("a gap where the controller is behind", over_depth("trend", (9, 8, 7, 7), gap=True, seeds=9), SUPPORTED),
)


@pytest.mark.parametrize(("name", "make", "state"), EDGES)
def test_on_the_edge_of_a_margin_too(name, make, state):
    assert count(make, state) <= FALSE, name


def test_no_check_that_chance_has_a_part_in_is_left_out():
    rng = np.random.default_rng(0)
    made = {make(rng)[0].check for make in (*NO_EFFECT.values(), *(make for _, make, _ in EDGES))}
    assert made == set(CHECKS) - {"stable", "unstable", "fewer_steps", "settled"}


@pytest.mark.parametrize(
    ("make", "state", "power"),
    [
        (two_arms(effect=0.5), SUPPORTED, 0.20),
        (two_arms((7, 7), effect=0.5), SUPPORTED, 0.80),
        (two_arms((9, 9), effect=0.5), SUPPORTED, 0.90),
        (two_arms((9, 9), effect=0.3), SUPPORTED, 0.50),
        (two_arms((9, 9)), EQUAL, 0.30),
        (two_arms((15, 15)), EQUAL, 0.69),
        (two_settings((0, 0)), EQUAL, 0.08),
        (two_settings((0, 0), (9, 9)), EQUAL, 0.66),
        (two_arms((9, 9), effect=-0.5), CONTRADICTED, 0.90),
        (over_depth("trend", (8, 7.7, 7.4, 7.1)), SUPPORTED, 0.76),
        (over_depth("keeps", (8, 7.7, 7.4, 7.1)), SUPPORTED, 0.13),
        (over_depth("keeps", (8, 7.7, 7.4, 7.1), seeds=9), SUPPORTED, 0.97),
        (over_depth("keeps", (8, 7.5, 7.5, 8.5), seeds=9), CONTRADICTED, 0.98),
        (widening(3), SUPPORTED, 0.85),
        (steps_from(0.03), SUPPORTED, 0.98),
    ],
)
def test_power_is_what_the_findings_say(make, state, power):
    """Of 100 studies of a real effect so many see it; scatter 0.3 points."""
    assert count(make, state, studies=800) / 800 == pytest.approx(power, abs=0.04)


def test_with_the_paper_s_three_seeds_most_studies_of_half_a_point_stay_open():
    assert count(two_arms(effect=0.5), OPEN) > STUDIES / 2


def twenty(effects, rng):
    """So many statements, each about a network of its own, of which the first ones have an effect of 0.8 points."""
    for number in range(1, 21):
        model = f"cifar/resnet{6 * number + 2}"
        errors = (rng.normal(7 - 0.8 * (arm == "lstm") * (number <= effects), 0.3, 5) for arm in ("lstm", "plain"))
        lstm, plain = (ended(arm, e, task(model)) for arm, e in zip(("lstm", "plain"), errors, strict=True))
        yield replace(LOWER, on=(Place("digits", model),)), lstm, plain


@pytest.mark.parametrize(("effects", "by_itself", "power"), [(0, 0.56, None), (10, 0.20, 0.84)])
def test_of_what_is_certain_among_all_statements_one_in_twenty_at_most_is_false(effects, by_itself, power):
    """Without any effect one of twenty statements or another is certain by itself in more than half of the studies."""
    rng = np.random.default_rng(7)
    false, seen, alone = [], [], []
    for _ in range(400):
        found = asked_together(*twenty(effects, rng))
        certain = [n for n, each in enumerate(found) if each.state in DECIDED and not each.alone]
        false.append(sum(n >= effects for n in certain) / max(len(certain), 1))
        seen.append(sum(n < effects for n in certain))
        alone.append(any(each.alone and each.state in DECIDED for each in found[effects:]))
    assert np.mean(false) <= 0.05
    assert np.mean(alone) == pytest.approx(by_itself, abs=0.07)
    assert not effects or np.mean(seen) / effects == pytest.approx(power, abs=0.04)
