"""The tables of results, cell by cell."""

import math
from dataclasses import replace

import pytest

from timestepper.report import results
from timestepper.report.claims import Claim, Row, Statement, Steps
from timestepper.report.groups import Group, group, task_of
from timestepper.report.records import Noise
from timestepper.report.results import Pending
from timestepper.report.statistics import MINUS, OPEN, SUPPORTED
from timestepper.report.tables import Cell, Table
from timestepper.report.verdicts import NOT_RUN, Verdict


def here(task):
    return "here"


def texts(table):
    return [[str(cell) for cell in row] for row in table.rows]


def runs(record, subject, errors, **changes):
    """A group of one subject whose seeds end with these errors, in percent."""
    made = {
        seed: replace(record, seed=seed, final={**record.final, "test": {"error": error / 100}}, **changes)
        for seed, error in enumerate(errors)
    }
    return Group(task_of(record), subject, made)


def test_every_group_stands_with_its_difference_to_plain_last_loss_and_time(records):
    epochs = ({"epoch": 1, "train": {"loss": 9.0}}, {"epoch": 2, "train": {"loss": 0.125}})
    plain = runs(records[0], "plain", [10, 12], epochs=epochs, wall_seconds=60.0)
    lstm = runs(records[0], "lstm", [8, 9], epochs=epochs, wall_seconds=7200.0)
    assert texts(results.measured_table([plain, lstm], here)) == [
        ["here: plain", "11.00 ± 1.41", "", "0.125 ± 0.000", "2", "60 s"],
        [
            "here: lstm",
            "8.50 ± 0.71",
            f"{MINUS}2.50 [{MINUS}16.71, +11.71]",
            "0.125 ± 0.000",
            "2",
            "2.0 h",
        ],
    ]


@pytest.mark.parametrize(
    ("seconds", "text"), [(99, "99 s"), (100, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (36000, "10.0 h")]
)
def test_a_time_has_the_unit_that_a_person_would_use(seconds, text):
    assert results.duration(seconds) == text


def test_only_our_own_runs_of_the_same_network_stand_beside_the_paper_s(records):
    place = {"data": "digits", "model": "cifar/resnet8"}
    rows = (
        Row("ours", **place, controller="lstm", paper={"test_error": 7.0}),
        Row("other", **place, controller="two_fc", paper={"test_error": 6.0}),
        Row("quoted", **place, controller="lstm", paper={"test_error": 5.0}, origin="Hu et al."),
    )
    groups = [runs(records[0], "plain", [1, 2]), runs(records[0], "lstm", [7, 8, 9])]
    assert texts(results.paper_table(Claim("c", "Table 9", "t", row=rows), groups, here)) == [
        ["ours, digits", "7.00", "8.00 ± 1.00", "[5.52, 10.48]", "here, 3 seeds"],
        ["other, digits", "6.00", NOT_RUN, "", ""],
        ["quoted, digits (Hu et al.)", "5.00", "", "", ""],
    ]


def test_step_sizes_stand_under_the_paper_s_of_the_same_controller(records):
    paper = {"C-2_1": 0.5, "C-3_1": 0.6}
    claim = Claim("c", "Table 9", "t", steps=(Steps("A", "digits", "cifar/resnet8", "lstm", paper),))
    steps = {"layer1": ((0.25, 0.75),), "layer2": ((0.7,),)}
    groups = [runs(records[0], "plain", [1], step_sizes={}), runs(records[0], "lstm", [1], step_sizes=steps)]
    assert texts(results.steps_table(claim, groups, here)) == [
        ["A, paper", "0.500", "0.600"],
        ["A, measured: here, 1 seed", "0.500", "0.700"],
    ]
    assert texts(results.steps_table(claim, groups[:1], here))[1] == ["A, measured", NOT_RUN, NOT_RUN]


def test_step_sizes_of_a_short_schedule_are_told_from_the_paper_s(records):
    claim = Claim("c", "Table 9", "t", steps=(Steps("A", "digits", "cifar/resnet8", "lstm", {"C-2_1": 0.5}),))
    made = runs(records[0], "lstm", [1, 1])
    both = [made, replace(made, task=replace(made.task, epochs=30))]
    table = results.steps_table(claim, both, lambda task: f"{task.epochs} epochs")
    assert [row[0] for row in texts(table)[1:]] == [f"A, measured: {epochs} epochs, 2 seeds" for epochs in (2, 30)]


def test_a_seed_without_a_noise_level_leaves_the_others_theirs(records):
    whole, older = (Noise(levels, tuple((level,) for level in levels), ()) for levels in ((0.0, 0.5), (0.5,)))
    made = runs(records[0], "plain", [1, 1])
    made.runs[0], made.runs[1] = (
        replace(made.runs[seed], noise=replace(noise, loss=noise.error)) for seed, noise in enumerate((whole, older))
    )
    table = results.noise_table([made], here)
    assert table.columns == ("Runs", "0", "0.5")
    assert texts(table) == [["here: plain, 2 seeds", "0.0", "50.0 ± 0.0"]]


def test_groups_that_were_measured_at_other_noise_levels_leave_each_other_s_cells_empty(records):
    def at(*levels):
        rows = tuple((level,) for level in levels)
        return runs(records[0], "plain", [1], noise=Noise(levels, rows, rows))

    table = results.noise_table([at(0.5, 1.0), at(0.0, 0.5)], here)
    assert table.columns == ("Runs", "0", "0.5", "1")
    assert [row[1:] for row in texts(table)] == [["", "50.0", "100.0"], ["0.0", "50.0", ""]]


def test_the_bound_is_a_power_of_ten(records):
    record = next(record for record in records if record.stability)
    growth = replace(record.stability, log_bound=(math.log(10),) * 3)
    table = results.stability_table(group([replace(record, stability=growth)]), here)
    assert texts(table)[0][1] == "3.0"


def test_verdicts_come_before_what_is_not_yet_run():
    statement = Statement("s", "text", "lower", "test_error")
    found = [Verdict(Claim("c", "Table 9", "t"), statement, state, "") for state in (NOT_RUN, SUPPORTED, NOT_RUN)]
    found.append(replace(found[0], state=OPEN, where="digits", stand_in=True))
    rows = texts(results.verdict_table(found))
    assert [row[2] for row in rows] == [SUPPORTED, OPEN, NOT_RUN, NOT_RUN]
    assert rows[1][4] == "digits (stand-in)"


def test_the_paper_s_own_words_stand_in_quotation_marks_once():
    statement = Statement("s", "ours", "lower", "test_error", words="theirs")
    found = Verdict(Claim("c", "Table 9", "t"), statement, OPEN, "")
    rows = texts(results.verdict_table([found, replace(found, main=False)]))
    assert [row[0] for row in rows] == ["ours (\u201ctheirs\u201d)", "ours"]


def test_what_is_to_run_is_counted_in_runs():
    table = results.pending_table([Pending("fig5", "a", 3, 8.0), Pending("fig4", "b", 2, 2.0)])
    assert "5 runs, 10.0 h in all" in table.caption


def test_only_controllers_whose_runs_all_say_so_stand_in_the_table_of_what_is_read(records):
    def influenced(subject, *influences):
        made = runs(records[0], subject, [1] * len(influences))
        return replace(
            made,
            runs={
                seed: replace(made.runs[seed], final={"descriptor_influence": influence})
                for seed, influence in enumerate(influences)
            },
        )

    groups = [
        influenced("lstm", {"layer1": 0.2, "layer2": 0.02}, {"layer1": 0.4, "layer2": 0.04}),
        influenced("independent", {"layer1": 0.0}),  # it has nothing to read
        influenced("two_fc", {"layer1": 0.5}, {}),  # an older record does not say
    ]
    assert texts(results.influence_table(groups, here)) == [["here: lstm, 2 seeds", "3.0e-01", "3.0e-02"]]
    assert results.influence_table(groups[1:], here) is None


def test_attached_and_folded_errors_are_in_percent(records):
    final = {"test": {"error": 0.125}, "folded": {"error": 0.25}, "fold_difference": 0.0}
    table = results.fold_table([Group(task_of(records[0]), "lstm", {3: replace(records[0], final=final)})], here)
    assert texts(table) == [["here: lstm, seed 3", "12.50", "25.00", "0"]]


def test_a_fold_that_changes_a_logit_is_not_shown_as_good(records):
    stepped = next(record for record in records if "folded" in record.final)
    for difference, tone in ((0.0, "good"), (0.5, "")):
        run = replace(stepped, final={**stepped.final, "fold_difference": difference})
        table = results.fold_table([Group(task_of(run), "lstm", {0: run})], here)
        assert table.rows[0][3] == Cell(f"{difference:.3g}", tone=tone)


def test_folded_runs_of_one_controller_with_two_values_can_be_told_apart(records):
    stepped = next(record for record in records if "folded" in record.final)
    subjects = ("fixed(0.5)", "fixed(0.01)")
    table = results.fold_table([Group(task_of(stepped), subject, {4: stepped}) for subject in subjects], here)
    assert [row[0] for row in texts(table)] == ["here: fixed 0.5, seed 4", "here: fixed 0.01, seed 4"]


def test_a_record_of_changed_files_says_so(records):
    changed = replace(records[0], commit="0123456789abcdef+")
    clean = replace(records[1], commit="0123456789abcdef")
    commits = [row[1] for row in texts(results.record_table([changed, clean]))]
    assert sorted(commits) == ["0123456789", "0123456789+"]


def test_a_bar_in_a_text_is_no_column_of_a_markdown_table():
    table = Table("t", "caption", ("A", "B"), ((Cell("|y|"), Cell("1")),))
    assert table.markdown().splitlines()[-1] == r"| \|y\| | 1 |"
