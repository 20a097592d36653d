"""What a figure may put together, and what it says it shows."""

import itertools
import math
import re
from dataclasses import replace

import pytest

from timestepper.cli.gather import solutions
from timestepper.recipe.load import as_dict, load
from timestepper.records.record import Outcome
from timestepper.report import figures, results, svg
from timestepper.report.groups import differences, group, how, same_start_of
from timestepper.report.statistics import MINUS
from timestepper.report.summary import summarise


def at_depth(record, depth, error, *changes):
    recipe = as_dict(load("paper/cifar10", ["controller.kind=none", f"model.name=cifar/resnet{depth}", *changes]))
    curve = [loss + error for loss in record.loss]  # runs with the same curve are one
    return replace(record, recipe=recipe, final=replace(record.final, test=Outcome(error / 100)), loss=curve)


def test_a_depth_that_was_run_under_other_conditions_stays_out_of_the_curve(records):
    found = [at_depth(records[0], depth, error) for depth, error in ((32, 7.5), (56, 7.0), (110, 6.5))]
    other = at_depth(records[0], 56, 9.0, "schedule.warmup_epochs=1")
    drawn = figures.depth(group([*found, other]), lambda task, extra: how(task, {}, extra))
    (panel,) = drawn.panels
    assert "7.50 at depth 32, 7.00 at depth 56, 6.50 at depth 110" in panel.drawing
    both = [*found, other, at_depth(records[0], 32, 9.5, "schedule.warmup_epochs=1")]
    drawn = figures.depth(group(both), lambda task, extra: how(task, {}, extra))
    assert [panel.heading for panel in drawn.panels] == [
        "CIFAR-10, 300 epochs, batch 64",
        "CIFAR-10, 300 epochs, batch 64, warmup epochs 1.0",
    ]


def test_a_difference_is_the_network_s_error_less_the_plain_one_s(records):
    plain = [at_depth(replace(records[0], seed=seed), 56, error) for seed, error in enumerate((7.0, 7.2))]
    kind = {"kind": "lstm"}
    stepped = [
        replace(
            at_depth(record, 56, error), recipe={**record.recipe, "controller": {**record.recipe["controller"], **kind}}
        )
        for record, error in zip(plain, (6.0, 6.4), strict=True)
    ]
    ((found, apart),) = differences(group([*plain, *stepped]))
    assert (found.subject.label, apart.mean) == ("lstm", pytest.approx(-0.9))


def test_the_plain_network_that_starts_as_a_controller_does_is_the_fair_one(records):
    """Its panel and its sentence appear where it was run, and only there."""
    start = "model.last_norm_init=0.5"
    errors = {"plain": (7.0, 7.4), "lstm": (6.0, 6.4), "fair": (5.9, 6.1)}
    plain, fair, stepped = (
        [at_depth(replace(records[0], seed=seed), 56, error, *more) for seed, error in enumerate(errors[name])]
        for name, more in (("plain", ()), ("fair", (start,)), ("lstm", ("controller.kind=lstm",)))
    )
    both, all_three = group([*plain, *stepped]), group([*plain, *fair, *stepped])

    def headings(groups):
        return [panel.heading for panel in figures.comparison(groups, lambda task: "here").panels]

    assert headings(both) == ["Minus plain: here"]
    assert headings(all_three) == ["Minus plain: here", "Minus plain that starts at half steps: here"]
    base = same_start_of(all_three)
    apart = {found.subject.label: value.mean for found, value in differences(all_three, base)}
    assert apart == {"plain": pytest.approx(1.2), "lstm": pytest.approx(0.2)}
    assert "half" not in summarise(both, {}, [], None, lambda task: "here")[1]
    (sentence,) = summarise(all_three, {}, [], None, lambda task: "here")[1:]
    assert sentence.endswith(f"has 6.00 ± 0.14%; lstm minus that: +0.20 points, [{MINUS}2.64, +3.04].")


def test_a_run_far_behind_the_others_leaves_them_room(records):
    """It stands at the edge as an arrow, with its figures in words; the others keep their places."""
    errors = {"none": (7.0, 7.4), "lstm": (6.0, 6.2), "two_fc": (6.1, 6.4), "independent": (6.5, 6.7)}
    near = [
        at_depth(replace(records[0], seed=seed), 56, error, f"controller.kind={kind}")
        for kind, both in errors.items()
        for seed, error in enumerate(both)
    ]
    fixed = ("controller.kind=fixed", "controller.value=0.01")
    far = [at_depth(replace(records[0], seed=seed), 56, error, *fixed) for seed, error in enumerate((43.0, 43.8))]

    def drawing(runs):
        return figures.comparison(group(runs), lambda task: "here").panels[0].drawing

    without, with_it = drawing(near), drawing([*near, *far])
    assert ("beyond" in without, with_it.count("beyond")) == (False, 1)
    assert "fixed 0.01: +36.20" in with_it
    centres = r'<circle class="dot stepped" cx="([\d.]+)"'
    assert re.findall(centres, with_it) == re.findall(centres, without)
    assert len(re.findall(centres, without)) == 3


@pytest.mark.parametrize(("mean", "tip"), [(-9.0, 10.0), (9.0, svg.WIDTH - 10.0)])
def test_an_arrow_points_away_from_the_axis(mean, tip):
    drawn = svg.forest([("label", mean, (mean - 0.5, mean + 0.5))], (-1.0, 1.0), "x", "title", "text")
    (points,) = re.findall(r'<polygon class="dot stepped beyond" points="([^"]+)"', drawn)
    first, *back = [float(point.partition(",")[0]) for point in points.split()]
    assert first == tip
    assert all((x - tip) * mean < 0 for x in back)


@pytest.mark.parametrize(
    ("low", "high", "tips"),
    [
        (-0.5, 0.5, []),
        (-5.0, 0.5, [10.0]),
        (-0.5, 5.0, [svg.WIDTH - 10.0]),
        (-5.0, 5.0, [10.0, svg.WIDTH - 10.0]),
    ],
)
def test_every_cut_end_of_a_bar_is_an_arrow(low, high, tips):
    drawn = svg.forest([("label", 0.2, (low, high))], (-1.0, 1.0), "x", "title", "text")
    heads = re.findall(r'<polygon class="dot stepped cut" points="([^"]+)"', drawn)
    places = [[float(point.partition(",")[0]) for point in head.split()] for head in heads]
    assert [tip for tip, *_ in places] == tips
    assert all((x - tip) * (tip - svg.WIDTH / 2) < 0 for tip, *back in places for x in back)
    assert "beyond" not in drawn


def test_a_mean_beyond_the_axis_is_one_arrow_and_the_other_end_of_its_bar_another():
    drawn = svg.forest([("label", 9.0, (-5.0, 23.0))], (-1.0, 1.0), "x", "title", "text")
    assert (drawn.count('stepped beyond"'), drawn.count('stepped cut"')) == (1, 1)


def points_of(drawing, css):
    """Where the first line of a series runs, in units of the drawing."""
    found = re.search(f'<polyline class="line {css}" points="([^"]+)"', drawing)
    return [tuple(map(float, point.split(","))) for point in found[1].split()]


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_a_plot_runs_from_its_lower_left_to_its_upper_right(log_x, log_y):
    """The middle of 1 and 100 is 10 on a logarithmic axis."""
    plot = svg.Plot((1, 100), (1, 100), "x", "y", log_x=log_x, log_y=log_y)
    middle = (10.0 if log_x else 50.5, 10.0 if log_y else 50.5)
    plot.line([(plot.x[0], plot.y[0]), middle, (plot.x[1], plot.y[1])], "plain")
    assert points_of(plot.parts[0], "plain") == [(54, 194), (201, 102), (348, 10)]


def test_figure_1_shows_the_exact_solution():
    """y = exp(-4t) from t = 0 to 3, here read at t = 0.5."""
    for panel in figures.initial_value_problem(solutions()).panels:
        line = points_of(panel.drawing, "quiet")
        (left, top), (x, y), (right, bottom) = line[0], line[25], line[-1]
        assert (x - left) / (right - left) == pytest.approx(0.5 / 3, abs=1e-3)
        assert (bottom - y) / (bottom - top) == pytest.approx(math.exp(-2), abs=2e-3)


def test_a_long_training_is_shown_from_its_first_to_its_last_epoch():
    assert figures.thinned(3) == [0, 1, 2]
    long = figures.thinned(300)
    assert (long[0], long[-1]) == (0, 299)
    steps = {later - earlier for earlier, later in itertools.pairwise(long)}
    assert steps == {6, 7}


def test_panels_of_one_task_stand_together(records):
    short = [replace(r, recipe={**r.recipe, "run": {**r.recipe["run"], "epochs": 1}}) for r in records]
    drawn = figures.learning_curves(group([*records, *short]), lambda task: f"{task.epochs} epochs")
    tasks = [panel.group.partition(":")[0] for panel in drawn.panels]
    assert len(set(tasks)) == len(list(itertools.groupby(tasks))) == 2


def test_a_line_is_the_mean_of_what_all_seeds_have_and_its_shade_their_range():
    plot = svg.Plot((0, 2), (0, 100), "x", "y")
    text = figures.draw(plot, [[(0, 10.0), (1, 20.0), (2, 30.0)], [(1, 40.0), (2, 80.0)]], "plain", "name")
    assert text == "name from 30 at 1 to 55 at 2"
    band, line = svg.Plot((0, 2), (0, 100), "x", "y"), svg.Plot((0, 2), (0, 100), "x", "y")
    band.band([(1, 20), (2, 30)], [(1, 40), (2, 80)], "plain")
    line.line([(1, 30), (2, 55)], "plain")
    assert plot.parts == [*band.parts, *line.parts]


def test_whether_the_controller_reads_the_weights_is_shown(records):
    groups = group(records)
    table = results.influence_table(groups, lambda task: "here")
    assert table.columns == ("Runs", "Stage 1", "Stage 2", "Stage 3")
    ((name, *cells),) = table.rows  # the plain network has nothing to read
    assert (name.under, name.text) == ("here", "lstm, 2 seeds")
    both = [record.final.descriptor_influence["layer1"] for record in records if record.final.folded]
    assert cells[0].text == f"{sum(both) / 2:.1e}"
    assert not results.influence_table([found for found in groups if found.subject.kind == "plain"], str).rows
    stepped = next(record for record in records if record.final.folded)
    deaf = replace(stepped, final=replace(stepped.final, descriptor_influence={"layer1": 0.0}))
    assert results.influence_table(group([deaf]), lambda task: "here").rows[0][1].text == "0"


def test_panels_of_one_task_have_one_axis(records):
    """They stand side by side: the height of a line must mean the same in each."""
    record = next(record for record in records if record.stability)
    controller = record.recipe["controller"] | {"kind": "two_fc", "value": None}
    steeper = replace(record.stability, log_bound=tuple(10 * log for log in record.stability.log_bound))
    other = replace(record, recipe=record.recipe | {"controller": controller}, stability=steeper)
    figure = figures.stability(group([record, other]), lambda task: "here")
    first, second = (re.findall(r'<text class="tick end".*?</text>', panel.drawing) for panel in figure.panels)
    assert first == second != []


def test_the_worst_found_is_the_worst_of_all_searches(records):
    record = next(record for record in records if record.stability)
    blocks = len(record.stability.log_bound)
    growth = replace(
        record.stability,
        log_growth={"power": (1.0,) * blocks, "adversarial": (2.0,) * blocks, "random": (0.1,) * blocks},
        log_end_to_end={"power": 2 * math.log(10), "adversarial": 3 * math.log(10), "random": 0.0},
    )
    groups = group([replace(record, stability=growth)])
    table = results.stability_table(groups, lambda task: "here")
    assert [cell.text for cell in table.rows[0][2:]] == ["3.00", "3.00", "0.00"]
    drawn = figures.stability(groups, lambda task: "here")
    assert f"measured growth {math.exp(2):.2f} to {math.exp(2):.2f}" in drawn.panels[0].drawing


@pytest.mark.parametrize("measure", ["error", "loss"])
def test_curves_of_zeros_have_an_axis(records, measure):
    """Every test image right, or nothing left to learn: a logarithm has no place for zero."""
    zeros = replace(records[0], **{measure: (0.0, 0.0)})
    drawn = figures.learning_curves(group([zeros]), lambda task: "here")
    assert len(drawn.panels) == 2
    for panel in drawn.panels:
        assert not re.search(r"nan|inf", panel.drawing)


@pytest.mark.parametrize("span", [(1.0, 0.0), (0.0, 0.0), (2.0, 2.0), (0.0, 5.0), (1.0, 10.0)])
def test_a_logarithmic_axis_has_a_length_whatever_its_ends(span):
    low, high = svg.Plot((0, 1), span, "x", "y", log_y=True).y
    assert 0 < low < high
    assert high >= max(span)


def test_seeds_that_share_no_point_are_drawn_as_nothing():
    plot = svg.Plot((0, 2), (0, 100), "x", "y")
    assert (
        figures.draw(plot, [[(0, 1.0), (1, 2.0)], [(2, 3.0)]], "plain", "name") == "name: no point that all seeds have"
    )
    assert plot.parts == []


def test_a_bound_that_no_float_holds_is_drawn_at_the_edge_and_said(records):
    record = next(record for record in records if record.stability)

    def drawn(*logs):
        growth = replace(record.stability, log_bound=logs)
        return figures.stability(group([replace(record, stability=growth)]), lambda task: "here")

    huge, usual = drawn(0.0, 800.0, -800.0), drawn(0.0, 1.0, 2.0)
    assert "Bound 0.00 to 10^347" in huge.panels[0].drawing
    assert not re.search(r"nan|inf\b", huge.panels[0].drawing)
    assert ("drawn there" in huge.caption, "drawn there" in usual.caption) == (True, False)


def test_the_title_of_a_stability_drawing_names_its_task(records):
    drawn = figures.stability(group(records), lambda task: "ResNet on here")
    for panel in drawn.panels:
        assert f"measured growth, ResNet on here: {panel.heading}</title>" in panel.drawing
