"""The tables of results: what was measured, beside the paper's numbers, and what is still to run."""

import math
from collections.abc import Sequence
from functools import partial

from timestepper.records.diverged import Diverged
from timestepper.records.record import Record
from timestepper.report import quantities
from timestepper.report.claims import Claim, Line
from timestepper.report.groups import Arm, Label, by_task, differences, task_of
from timestepper.report.names import data_name
from timestepper.report.statistics import EQUAL_MARGIN, FEWEST, NOT_RUN, STATES, mean_of, signed
from timestepper.report.tables import Rows, Table, TableCell
from timestepper.report.verdicts import Verdict
from timestepper.report.wording import quoted

_NOT_RUN = TableCell(NOT_RUN, tone="quiet")
_VERDICTS = (
    "Verdicts on the paper (its own words in quotation marks) and on our questions. Supported: the 95% interval (where "
    "a margin is allowed, the 90% one) lies where the statement puts it, for every part of it. Contradicted: some part "
    "certainly does not hold, corrected for the number of parts (Holm). Equal: the 90% interval lies within "
    f"±{EQUAL_MARGIN:g} points, in each setting. Open: the runs cannot say; fewer than {FEWEST} seeds never can, nor "
    "can seeds of which some diverged or settings that disagree. A difference of errors whose interval ends at 0.00 is "
    "neither supported nor contradicted. Seeds are those of the first and the second group that a statement names; "
    "intervals in brackets are the 95% ones unless they say otherwise"
)


def measured_table(arms: Sequence[Arm], label: Label) -> Table:
    """Every arm: error, difference to plain, time."""
    rows: Rows = []
    timed = any(record.gpu_seconds is not None for arm in arms for record in arm.runs.values())
    for task, bundle in by_task(arms).items():
        found = {arm.subject: apart for arm, apart in differences(bundle)}
        for arm in bundle:
            apart = ""
            if less := found.get(arm.subject):
                apart = f"{signed(less.mean)} {less.bounds() if less.known else f'({less.bounds()})'}"
            loss = mean_of(record.loss[-1] for record in arm.runs.values())
            seconds = arm.mean(lambda record: record.gpu_seconds)
            time = [f"{seconds.mean:.0f}" if seconds else ""] if timed else []
            name = TableCell(arm.subject.label, under=label(task))
            seeds = str(len(arm.runs)) + (f" and {len(arm.diverged)} that diverged" if arm.diverged else "")
            rows.append((name, arm.error.spread(), apart, loss.spread(3), seeds, *time))
    columns = ("Runs", "Test error, %", "Minus plain, 95% interval", "Training loss", "Seeds", *["GPU seconds"] * timed)
    caption = "All finished runs: last epoch, mean ± standard deviation over seeds; differences with Welch's interval"
    if timed:
        caption += "; the seconds are shared among the runs of a process, not among processes that share a card"
    return Table("measured", caption, columns, rows)


def diverged_table(runs: Sequence[Diverged], label: Label) -> Table:
    """The runs that no mean has."""
    rows: Rows = []
    for run in runs:
        rate = f"{run.recipe.get('optimiser', {}).get('lr')}"
        name = TableCell(f"{run.subject.label}, seed {run.seed}", under=label(task_of(run)))
        rows.append((name, rate, str(run.step), run.commit[:10]))
    return Table("diverged", "Runs that diverged", ("Run", "Learning rate", "At update", "Commit"), rows)


def paper_table(claim: Claim, arms: Sequence[Arm], label: Label) -> Table:
    """Errors of a table of the paper beside ours."""
    rows: Rows = []
    for line in claim.row:
        name = f"{line.label}, {data_name(line.data)}" + (f" ({line.origin})" if line.origin else "")
        paper = f"{line.paper['test_error']:.2f}" if "test_error" in line.paper else ""
        found = [] if line.origin else _runs_of(line, arms)
        for arm in found:
            bounds, runs = arm.error.bounds().replace("+", ""), f"{label(arm.task)}, {_seeds(len(arm.runs))}"
            rows.append((name, paper, arm.error.spread(), bounds, runs))
        if not found:
            rows.append((name, paper, TableCell("", tone="quiet") if line.origin else _NOT_RUN, "", ""))
    columns = ("Network", "Paper, error %", "Measured", "95% interval of the mean", "Runs")
    return Table(claim.name, f"{claim.place}: {claim.title}", columns, rows)


def _runs_of(line: Line, arms: Sequence[Arm]) -> list[Arm]:
    """Our runs of what a line of the paper is about, under whatever schedule."""
    wanted = (line.data, line.model, line.subject)
    return [arm for arm in arms if (arm.task.data, arm.task.model, arm.subject) == wanted]


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _name(arm: Arm, count: int, label: Label) -> TableCell:
    """What a row is called that so many of the arm's seeds stand behind."""
    return TableCell(f"{arm.subject.label}, {_seeds(count)}", under=label(arm.task))


def steps_table(claim: Claim, arms: Sequence[Arm], label: Label) -> Table:
    """Table 4: the paper's step sizes beside ours, block by block, a row for every task that was run."""
    blocks = list(claim.steps[0].paper)
    rows: Rows = []
    for line in claim.steps:
        rows.append([f"{line.label}, paper", *(f"{line.paper[block]:.3f}" for block in blocks)])
        found = _runs_of(line, arms)
        for arm in found:
            means = [arm.mean(partial(quantities.paper_block, block=block)) for block in blocks]
            name = f"{line.label}, measured: {label(arm.task)}, {_seeds(len(arm.runs))}"
            rows.append([name, *(mean.spread(3) if mean else "" for mean in means)])
        if not found:
            rows.append([f"{line.label}, measured", *[_NOT_RUN] * len(blocks)])
    return Table(claim.name, f"{claim.place}: {claim.title}", ("Network", *blocks), rows)


def noise_table(arms: Sequence[Arm], label: Label) -> Table:
    """Test error at every noise level that any run was measured at; an empty cell where an arm was not."""
    curves = [(arm, [dict(quantities.noise_curve(r, "error")) for r in arm.runs.values() if r.noise]) for arm in arms]
    levels = sorted({level for _, found in curves for curve in found for level in curve})
    rows: Rows = []
    for arm, found in curves:
        means = ([curve[level] for curve in found if level in curve] for level in levels)
        if found:
            cells = (mean_of(values).spread(1) if values else "" for values in means)
            rows.append((_name(arm, len(found), label), *cells))
    caption = "Test error in percent by standard deviation of the noise: mean ± standard deviation over seeds"
    return Table("noise-table", caption, ("Runs", *(f"{level:g}" for level in levels)), rows)


def stability_table(arms: Sequence[Arm], label: Label) -> Table:
    """End to end: the bound and what was measured, as powers of ten."""
    rows: Rows = []
    for arm in arms:
        found = [record.stability for record in arm.runs.values() if record.stability]
        if not found:
            continue
        ends = [max(growth.log_end_to_end.values()) for growth in found]  # no search finds the worst every time
        others = ([growth.log_end_to_end[kind] for growth in found] for kind in ("adversarial", "random"))
        bound = mean_of(sum(growth.log_bound) / math.log(10) for growth in found)
        measured = (mean_of(log / math.log(10) for log in logs).spread() for logs in (ends, *others))
        rows.append((_name(arm, len(found), label), bound.spread(1), *measured))
    columns = ("Runs", "Bound (Proposition 1)", "Worst found", "Adversarial", "Random")
    caption = (
        "From the first block's input to the last block's output: decimal logarithm of the growth of a perturbation"
    )
    return Table("stability-table", caption, columns, rows)


def influence_table(arms: Sequence[Arm], label: Label) -> Table:
    """Whether controllers that are given the weights read them, stage by stage."""
    rows: Rows = []
    for arm in arms:
        runs = [list(record.final.descriptor_influence.values()) for record in arm.runs.values()]
        if arm.subject.reads_weights and all(runs):
            means = (mean_of(stage).mean for stage in zip(*runs, strict=False))
            rows.append((_name(arm, len(runs), label), *(f"{mean:.1e}" if mean else "0" for mean in means)))
    width = max(map(len, rows), default=1)
    rows = [(*row, *[""] * (width - len(row))) for row in rows]
    caption = (
        "Does the controller read the weights? Largest change of any step size when it is shown zeros instead "
        "of the weights; mean over seeds. Near zero means that its step sizes are learned constants"
    )
    columns = ("Runs", *(f"Stage {number}" for number in range(1, width)))
    return Table("influence", caption, columns, rows)


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Every statement with its verdicts."""
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.state == NOT_RUN):
        words = f" ({quoted(verdict.statement.words)})" if verdict.statement.words and verdict.main else ""
        state = TableCell(verdict.state, tone=STATES[verdict.state])
        where = verdict.where + (" (stand-in)" if verdict.stand_in else "")
        place = verdict.claim.place.partition(",")[0]
        rows.append((verdict.statement.text + words, place, state, verdict.detail, where))
    return Table("verdicts", _VERDICTS, ("Statement", "Where", "Verdict", "Measured", "On"), rows)


def fold_table(arms: Sequence[Arm], label: Label) -> Table:
    """Attached network beside its folded twin, which must not differ."""
    rows: Rows = []
    for arm in arms:
        for seed, record in arm.runs.items():
            if fold := record.final.fold:
                errors = (f"{100 * error:.2f}" for error in (record.final.test.error, fold[0]))
                name = TableCell(f"{arm.subject.label}, seed {seed}", under=label(arm.task))
                rows.append((name, *errors, TableCell(f"{fold[1]:.3g}", tone="" if fold[1] else "good")))
    caption = "Folding: the controller is gone, the function is the same"
    columns = ("Run", "Attached, test error, %", "Folded, test error, %", "Largest difference of logits")
    return Table("folding", caption, columns, rows)


def record_table(records: Sequence[Record]) -> Table:
    """Where every number comes from."""
    rows = [
        (
            record.path.rpartition("/")[2],
            record.commit[:10] + ("+" if record.commit.endswith("+") else ""),
            record.device,
            record.versions.get("torch", ""),
            record.data_sha256[:10],
            duration(record.wall_seconds),
        )
        for record in sorted(records, key=lambda record: record.path)
    ]
    columns = ("Record", "Commit", "Device", "torch", "Data sha256", "Wall time")
    return Table("records", "The records behind this page", columns, rows)


def duration(seconds: float) -> str:
    """``42 s``, ``13 min`` or ``5.2 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
