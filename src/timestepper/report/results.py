"""The tables of results: what was measured, beside the paper's numbers, and what is still to run."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from timestepper.names import reads_weights
from timestepper.report import quantities
from timestepper.report.claims import Claim, Row, Steps
from timestepper.report.compare import by_task, differences
from timestepper.report.groups import Group, Task
from timestepper.report.names import data_name, subject_name
from timestepper.report.records import Record
from timestepper.report.statistics import CONTRADICTED, EQUAL, EQUAL_MARGIN, FEWEST, OPEN, SUPPORTED, mean_of, signed
from timestepper.report.tables import Cell, Table
from timestepper.report.verdicts import NO_EFFECT, NOT_RUN, Verdict

_TONES = {SUPPORTED: "good", CONTRADICTED: "bad", NO_EFFECT: "bad", EQUAL: "", OPEN: "", NOT_RUN: "quiet"}
_KINDS = ("adversarial", "random")
_TEN = math.log(10)
_VERDICTS = (
    "Verdicts on the paper (its own words in quotation marks) and on our questions. Supported: the 95% interval (where "
    "a margin is allowed, the 90% one) lies where the statement puts it, with every part of it. Contradicted: for "
    "certain not, corrected for the number of parts (Holm). Equal: the 90% interval lies within "
    f"±{EQUAL_MARGIN:g} points. Open: the runs cannot say; fewer than {FEWEST} seeds never can"
)
Label = Callable[[Task], str]


@dataclass(frozen=True)
class Pending:
    """Runs that a set of the project asks for and that have no record."""

    sets: str
    label: str
    seeds: int
    hours: float


def measured_table(groups: Sequence[Group], label: Label) -> Table:
    """Every group: error, difference to plain, time."""
    rows = []
    for task, bundle in by_task(groups).items():
        found = {group.subject: difference for group, difference in differences(bundle)}
        for group in bundle:
            error = mean_of(group.values(quantities.test_error).values())
            loss = mean_of(group.values(lambda record: record.epochs[-1]["train"]["loss"]).values())
            apart = found.get(group.subject)
            seconds = mean_of(record.wall_seconds for record in group.runs.values()).mean
            rows.append(
                (
                    Cell(subject_name(group.subject), under=label(task)),
                    Cell(error.spread()),
                    Cell(f"{signed(apart.mean)} {apart.bounds()}" if apart and apart.known else _alone(apart)),
                    Cell(loss.spread(3)),
                    Cell(str(len(group.runs))),
                    Cell(duration(seconds)),
                )
            )
    columns = ("Runs", "Test error, %", "Minus plain, 95% interval", "Training loss", "Seeds", "Time per run")
    caption = "All finished runs: last epoch, mean ± standard deviation over seeds; differences with Welch's interval"
    return Table("measured", caption, columns, tuple(rows))


def _alone(apart) -> str:
    return f"{signed(apart.mean)} ({apart.bounds()})" if apart else ""


def paper_table(claim: Claim, groups: Sequence[Group], label: Label) -> Table:
    """Errors of a table of the paper beside ours."""
    rows = []
    for row in claim.row:
        name = f"{row.label}, {data_name(row.data)}" + (f" ({row.origin})" if row.origin else "")
        paper = Cell(f"{row.paper['test_error']:.2f}") if "test_error" in row.paper else Cell("")
        found = _runs_of(row, groups)
        if row.origin or not found:
            rows.append((Cell(name), paper, Cell("" if row.origin else NOT_RUN, tone="quiet"), Cell(""), Cell("")))
        for group in found if not row.origin else ():
            error = mean_of(group.values(quantities.test_error).values())
            interval_text = error.bounds().replace("+", "")
            cells = (
                Cell(error.spread()),
                Cell(interval_text),
                Cell(f"{label(group.task)}, {_seeds(min(error.counts))}"),
            )
            rows.append((Cell(name), paper, *cells))
    columns = ("Network", "Paper, error %", "Measured", "95% interval of the mean", "Runs")
    return Table(claim.name, f"{claim.place}: {claim.title}", columns, tuple(rows))


def _runs_of(line: Row | Steps, groups: Sequence[Group]) -> list[Group]:
    """Our runs of what a line of the paper is about, under whatever schedule."""
    wanted = (line.data, line.model, line.controller)
    return [group for group in groups if (group.task.data, group.task.model, group.subject) == wanted]


def _seeds(count: int) -> str:
    return "1 seed" if count == 1 else f"{count} seeds"


def _name(group: Group, count: int, label: Label) -> Cell:
    """What a row is called that so many of the group's seeds stand behind."""
    return Cell(f"{subject_name(group.subject)}, {_seeds(count)}", under=label(group.task))


def steps_table(claim: Claim, groups: Sequence[Group], label: Label) -> Table:
    """Table 4: the paper's step sizes beside ours, block by block, a row for every task that was run."""
    blocks = list(claim.steps[0].paper)
    rows = []
    for line in claim.steps:
        rows.append((Cell(f"{line.label}, paper"), *(Cell(f"{line.paper[block]:.3f}") for block in blocks)))
        found = _runs_of(line, groups)
        for group in found:
            cells = (_block_cell(group, block) for block in blocks)
            rows.append((Cell(f"{line.label}, measured: {label(group.task)}, {_seeds(len(group.runs))}"), *cells))
        if not found:
            rows.append((Cell(f"{line.label}, measured"), *(Cell(NOT_RUN, tone="quiet") for _ in blocks)))
    return Table(claim.name, f"{claim.place}: {claim.title}", ("Network", *blocks), tuple(rows))


def _block_cell(group: Group, block: str) -> Cell:
    values = group.values(lambda record: quantities.paper_block(record, block))
    return Cell(mean_of(values.values()).spread(3) if values else "")


def noise_table(groups: Sequence[Group], label: Label) -> Table | None:
    """Test error at every noise level that any run was measured at; an empty cell where a group was not."""
    rows = []
    levels = sorted({level for group in groups for r in group.runs.values() if r.noise for level in r.noise.levels})
    for group in groups:
        curves = [dict(quantities.noise_curve(record, "error")) for record in group.runs.values() if record.noise]
        if not curves:
            continue
        found = [[curve[level] for curve in curves if level in curve] for level in levels]
        cells = (Cell(mean_of(values).spread(1) if values else "") for values in found)
        rows.append((_name(group, len(curves), label), *cells))
    caption = "Test error in percent by standard deviation of the noise: mean ± standard deviation over seeds"
    return Table("noise-table", caption, ("Runs", *(f"{level:g}" for level in levels)), tuple(rows)) if rows else None


def stability_table(groups: Sequence[Group], label: Label) -> Table | None:
    """End to end: the bound and what was measured, as powers of ten."""
    rows = []
    for group in groups:
        found = [record.stability for record in group.runs.values() if record.stability]
        if not found:
            continue
        bound = mean_of(sum(growth.log_bound) / _TEN for growth in found)
        ends = [[max(growth.log_end_to_end.values()) for growth in found]]  # no search finds the worst every time
        ends += [[growth.log_end_to_end[kind] for growth in found] for kind in _KINDS]
        measured = [mean_of(value / _TEN for value in values) for values in ends]
        cells = (Cell(value.spread()) for value in measured)
        rows.append((_name(group, len(found), label), Cell(bound.spread(1)), *cells))
    columns = ("Runs", "Bound (Proposition 1)", "Worst found", "Adversarial", "Random")
    caption = (
        "From the first block's input to the last block's output: decimal logarithm of the growth of a perturbation"
    )
    return Table("stability-table", caption, columns, tuple(rows)) if rows else None


def influence_table(groups: Sequence[Group], label: Label) -> Table | None:
    """Whether controllers that are given the weights read them, stage by stage."""
    rows = []
    for group in groups:
        reads = group.subject != "plain" and reads_weights(group.subject)  # the others have nothing to read
        runs = [list(record.final.get("descriptor_influence", {}).values()) for record in group.runs.values()]
        if reads and all(runs):
            cells = (Cell(_small(mean_of(stage).mean)) for stage in zip(*runs, strict=False))
            rows.append((_name(group, len(runs), label), *cells))
    width = max(map(len, rows), default=1)
    filled = tuple(row + (Cell(""),) * (width - len(row)) for row in rows)
    caption = (
        "Does the controller read the weights? Largest change of any step size where it is shown zeros instead of "
        "them: mean over seeds. Near zero, its step sizes are constants that it has learned"
    )
    columns = ("Runs", *(f"Stage {number}" for number in range(1, width)))
    return Table("influence", caption, columns, filled) if rows else None


def _small(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Every statement with its verdicts."""
    rows = []
    for verdict in sorted(verdicts, key=lambda verdict: verdict.state == NOT_RUN):
        where = verdict.where + (" (stand-in)" if verdict.stand_in else "")
        words = f" (\u201c{verdict.statement.words}\u201d)" if verdict.statement.words and verdict.main else ""
        cells = (Cell(verdict.claim.place.partition(",")[0]), Cell(verdict.state, tone=_TONES[verdict.state]))
        rows.append((Cell(verdict.statement.text + words), *cells, Cell(verdict.detail), Cell(where)))
    return Table("verdicts", _VERDICTS, ("Statement", "Where", "Verdict", "Measured", "On"), tuple(rows))


def pending_table(pending: Iterable[Pending]) -> Table:
    """What is still to run."""
    items = list(pending)
    rows = [
        (Cell(item.label), Cell(item.sets), Cell(str(item.seeds)), Cell(duration(3600 * item.hours))) for item in items
    ]
    total = duration(3600 * sum(item.hours for item in items))
    caption = (
        "Not yet run, with the GPU time that each line is expected to take on one H200-class card: "
        f"{sum(item.seeds for item in items)} runs, {total} in all"
    )
    return Table("pending", caption, ("Runs", "For", "Runs to go", "Expected GPU time"), tuple(rows))


def fold_table(groups: Sequence[Group], label: Label) -> Table | None:
    """Attached network beside its folded twin, which must not differ."""
    rows = [
        (
            Cell(f"{subject_name(group.subject)}, seed {seed}", under=label(group.task)),
            Cell(f"{100 * record.final['test']['error']:.2f}"),
            Cell(f"{100 * record.final['folded']['error']:.2f}"),
            Cell(f"{record.final['fold_difference']:.3g}", tone="" if record.final["fold_difference"] else "good"),
        )
        for group in groups
        for seed, record in group.runs.items()
        if "folded" in record.final
    ]
    caption = "Folding: the controller is gone, the function is the same"
    columns = ("Run", "Attached, test error, %", "Folded, test error, %", "Largest difference of logits")
    return Table("folding", caption, columns, tuple(rows)) if rows else None


def record_table(records: Sequence[Record]) -> Table:
    """Where every number comes from."""
    rows = [
        (
            Cell(record.path.rpartition("/")[2]),
            Cell(record.commit[:10] + ("+" if record.commit.endswith("+") else "")),
            Cell(record.device),
            Cell(record.versions.get("torch", "")),
            Cell(record.data_sha256[:10]),
            Cell(duration(record.wall_seconds)),
        )
        for record in sorted(records, key=lambda record: record.path)
    ]
    columns = ("Record", "Commit", "Device", "torch", "Data sha256", "Time")
    return Table("records", "The records behind this page", columns, tuple(rows))


def duration(seconds: float) -> str:
    """``42 s``, ``13 min`` or ``5.2 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
