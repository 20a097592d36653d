"""The tables of results, cell by cell."""

import math
from dataclasses import replace

import pytest

from timestepper.records.record import Final, Noise, Outcome
from timestepper.records.subject import subject as subject_named
from timestepper.report import results
from timestepper.report.claims import Claim, Line, Statement
from timestepper.report.groups import Arm, group, task_of
from timestepper.report.statistics import MINUS, NOT_RUN, OPEN, SUPPORTED
from timestepper.report.tables import Table, TableCell
from timestepper.report.verdicts import Verdict
from timestepper.report.wording import quoted

LSTM = subject_named("lstm")


def here(task):
    return "here"


def texts(made):
    return [[str(cell) for cell in row] for row in made.rows]


def runs(record, subject, errors, **changes):
    """A group of one subject whose seeds end with these errors, in percent."""
    made = {
        seed: replace(record, seed=seed, final=replace(record.final, test=Outcome(error / 100)), **changes)
        for seed, error in enumerate(errors)
    }
    return Arm(task_of(record), subject_named(subject), made)


def test_every_group_stands_with_its_difference_to_plain_last_loss_and_time(records):
    plain = runs(records[0], "plain", [10, 12], loss=(9.0, 0.125), gpu_seconds=60.0)
    lstm = runs(records[0], "lstm", [8, 9], loss=(9.0, 0.125), gpu_seconds=None)
    assert texts(results.measured_table([plain, lstm], here)) == [
        ["here: plain", "11.00 ± 1.41", "", "0.125 ± 0.000", "2", "60"],
        [
            "here: lstm",
            "8.50 ± 0.71",
            f"{MINUS}2.50 [{MINUS}16.71, +11.71]",
            "0.125 ± 0.000",
            "2",
            "",
        ],
    ]
    assert len(results.measured_table([lstm], here).columns) == 5  # older records do not say what the card gave them


@pytest.mark.parametrize(
    ("seconds", "text"), [(99, "99 s"), (100, "2 min"), (5399, "90 min"), (5400, "1.5 h"), (36000, "10.0 h")]
)
def test_a_time_has_the_unit_that_a_person_would_use(seconds, text):
    assert results.duration(seconds) == text


def test_only_our_own_runs_of_the_same_network_stand_beside_the_paper_s(records):
    place = {"data": "digits", "model": "cifar/resnet8"}
    rows = (
        Line("ours", **place, controller="lstm", paper={"test_error": 7.0}),
        Line("other", **place, controller="two_fc", paper={"test_error": 6.0}),
        Line("quoted", **place, controller="lstm", paper={"test_error": 5.0}, origin="Hu et al."),
    )
    groups = [runs(records[0], "plain", [1, 2]), runs(records[0], "lstm", [7, 8, 9])]
    assert texts(results.paper_table(Claim("c", "Table 9", "t", row=rows), groups, here)) == [
        ["ours, digits", "7.00", "8.00 ± 1.00", "[5.52, 10.48]", "here, 3 seeds"],
        ["other, digits", "6.00", NOT_RUN, "", ""],
        ["quoted, digits (Hu et al.)", "5.00", "", "", ""],
    ]


def test_step_sizes_stand_under_the_paper_s_of_the_same_controller(records):
    paper = {"C-2_1": 0.5, "C-3_1": 0.6}
    claim = Claim("c", "Table 9", "t", steps=(Line("A", paper, "digits", "cifar/resnet8", "lstm"),))
    steps = {"layer1": ((0.25, 0.75),), "layer2": ((0.7,),)}
    groups = [runs(records[0], "plain", [1], step_sizes={}), runs(records[0], "lstm", [1], step_sizes=steps)]
    assert texts(results.steps_table(claim, groups, here)) == [
        ["A, paper", "0.500", "0.600"],
        ["A, measured: here, 1 seed", "0.500", "0.700"],
    ]
    assert texts(results.steps_table(claim, groups[:1], here))[1] == ["A, measured", NOT_RUN, NOT_RUN]


def test_step_sizes_of_a_short_schedule_are_told_from_the_paper_s(records):
    claim = Claim("c", "Table 9", "t", steps=(Line("A", {"C-2_1": 0.5}, "digits", "cifar/resnet8", "lstm"),))
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


@pytest.mark.parametrize(
    ("latex", "shown"),
    [
        (
            r"better than $\Delta t=1$ and $\Delta t=0.01$",
            "better than \N{GREEK CAPITAL LETTER DELTA}t=1 and \N{GREEK CAPITAL LETTER DELTA}t=0.01",
        ),
        (r"TSC$_{2fc}$ and TSC$_{LSTM}$ by 0.79\%", "TSC_2fc and TSC_LSTM by 0.79%"),
        (r"Conv-3\_1, in Eq. (\ref{res_stab})", "Conv-3_1, in Eq. (\N{HORIZONTAL ELLIPSIS})"),
        (
            r"the same as $\frac{\partial L}{\partial \mathbf{y}_D}$",
            "the same as \N{PARTIAL DIFFERENTIAL}L/\N{PARTIAL DIFFERENTIAL}y_D",
        ),
    ],
)
def test_the_paper_s_words_are_shown_without_latex(latex, shown):
    assert quoted(latex) == f"\u201c{shown}\u201d"


def test_only_controllers_whose_runs_all_say_so_stand_in_the_table_of_what_is_read(records):
    def influenced(subject, *influences):
        made = runs(records[0], subject, [1] * len(influences))
        return replace(
            made,
            runs={
                seed: replace(made.runs[seed], final=replace(made.runs[seed].final, descriptor_influence=influence))
                for seed, influence in enumerate(influences)
            },
        )

    groups = [
        influenced("lstm", {"layer1": 0.2, "layer2": 0.02}, {"layer1": 0.4, "layer2": 0.04}),
        influenced("independent", {"layer1": 0.0}),  # it has nothing to read
        influenced("two_fc", {"layer1": 0.5}, {}),  # an older record does not say
    ]
    assert texts(results.influence_table(groups, here)) == [["here: lstm, 2 seeds", "3.0e-01", "3.0e-02"]]
    assert not results.influence_table(groups[1:], here).rows


def test_attached_and_folded_errors_are_in_percent(records):
    final = Final(Outcome(0.125), Outcome(0.25), 0.0)
    table = results.fold_table([Arm(task_of(records[0]), LSTM, {3: replace(records[0], final=final)})], here)
    assert texts(table) == [["here: lstm, seed 3", "12.50", "25.00", "0"]]


def test_a_fold_that_changes_a_logit_is_not_shown_as_good(records):
    stepped = next(record for record in records if record.final.folded)
    for difference, tone in ((0.0, "good"), (0.5, "")):
        run = replace(stepped, final=replace(stepped.final, fold_difference=difference))
        table = results.fold_table([Arm(task_of(run), LSTM, {0: run})], here)
        assert table.rows[0][3] == TableCell(f"{difference:.3g}", tone=tone)


def test_folded_runs_of_one_controller_with_two_values_can_be_told_apart(records):
    stepped = next(record for record in records if record.final.folded)
    subjects = map(subject_named, ("fixed(0.5)", "fixed(0.01)"))
    table = results.fold_table([Arm(task_of(stepped), subject, {4: stepped}) for subject in subjects], here)
    assert [row[0] for row in texts(table)] == ["here: fixed 0.5, seed 4", "here: fixed 0.01, seed 4"]


def test_a_record_of_changed_files_says_so(records):
    changed = replace(records[0], commit="0123456789abcdef+")
    clean = replace(records[1], commit="0123456789abcdef")
    commits = [row[1] for row in texts(results.record_table([changed, clean]))]
    assert sorted(commits) == ["0123456789", "0123456789+"]


def test_a_bar_in_a_text_is_no_column_of_a_markdown_table():
    made = Table("t", "caption", ("A", "B"), [("|y|", "1")])
    assert made.markdown().splitlines()[-1] == r"| \|y\| | 1 |"
