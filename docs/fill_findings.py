"""Writes the tables of findings.md as the records in results/ have them: `.venv/bin/python docs/fill_findings.py`.

A row of verdicts belongs to the statement whose words stand in it. A table of runs begins with a line that says which
(`<!-- runs: epochs=300 -->`); its rows name kinds of network, its columns what is asked of them. Which rows there are,
and all that is said around them, is for whoever writes the page. A test demands that nothing is left to fill in.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from timestepper.cli.gather import solutions
from timestepper.records import load_diverged, load_records
from timestepper.report.claims import load_claims
from timestepper.report.groups import Arm, group
from timestepper.report.quantities import at_noise, test_error
from timestepper.report.statistics import FEWEST, NOT_RUN, difference, signed
from timestepper.report.summary import count_states
from timestepper.report.verdicts import Verdict, headline, judge

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"
NAMES = {  # on the page, where it is not the report's own
    "half start": "plain, last norm starts at 0.5",
    "start at 0": "plain, last norm starts at 0",
    "warm-up": "plain",
    "lstm with warm-up": "lstm",
    "lstm, visible descriptor": "lstm, descriptor visible",
    "lstm, the paper's": "lstm",
    "Fixup's weights, without its multipliers and biases": "plain, network start fixup",
    "Fixup's weights": "plain, network start fixup",
    "Fixup's weights with its multiplier": "scalar 1, network start fixup",
    "channel(0.1) without weight decay": "channel 0.1, weight decay 0.0",
}
USUAL = {"data": "cifar10", "model": "cifar/resnet56", "epochs": "120", "lr": "0.1", "warmup": "0", "seeds": "0-999"}
_WORDS = re.compile(r"(, at |: | of those | for the ).*$")  # that follow a number, and stay


def measured() -> list[Arm]:
    """All runs, as the report groups them."""
    records, problems = load_records(ROOT / "results")
    diverged, damaged = load_diverged(ROOT / "results")
    assert not problems + damaged, problems + damaged
    return group(records, diverged)


def verdicts(arms: Sequence[Arm]) -> list[Verdict]:
    return judge(load_claims(ROOT / "claims")[0], arms, solutions())


def filled(page: str, arms: Sequence[Arm], found: Sequence[Verdict]) -> str:
    """The page with these runs and verdicts in its tables."""
    page = re.sub(r"^<!-- runs:(.*) -->\n+((?:\|.*\n)+)", partial(_table, arms=arms), page, flags=re.MULTILINE)
    row = partial(_verdict, found=found)
    page = re.sub(r"^(?P<begin>\|(?: [^|]* \|)? (?P<text>[^|]+) \| )[^|]* \| .*\|$", row, page, flags=re.MULTILINE)
    return re.sub(r"\d+ statements: \d[^.]*\.", f"{count_states(headline(found))}.", page)


# -- verdicts ----------------------------------------------------------------------------------------------------------


def _verdict(line: re.Match, found: Sequence[Verdict]) -> str:
    """What a statement rests on; where it has not been run in full, what there is of it so far."""
    every = [each for each in found if each.statement.text == line["text"]]
    main = next((each for each in every if each.main), None)
    if main is None:
        return line[0]
    begun = [each for each in every if each.detail.startswith("so far")]
    shown = begun[0] if begun and main.state == NOT_RUN else main
    text = re.sub(r"\((tests/[^)]*)\)", r"([test](../\1))", shown.detail).replace("|", r"\|")
    return f"{line['begin']}{main.state} | {text}{' (CIFAR stands in)' if shown.stand_in and text else ''} |"


# -- runs --------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Runs of one kind of network, and where others are found to compare them with."""

    arm: Arm
    other: Callable[[str], Arm | None]


def find(arms: Iterable[Arm], name: str, **given: str) -> Arm | None:
    """The runs that a name of the page stands for, in bf16; None where there are none."""
    where, name = USUAL | given, name.replace("`", "")
    if match := re.fullmatch(r"ResNet-(\d+), (.*)", name):
        where["model"], name = f"cifar/resnet{match[1]}", match[2]
    warmup = 1.0 if name.endswith("warm-up") else float(where["warmup"])
    label = NAMES.get(name, re.sub(r"\((.*)\)", r" \1", name).replace("_", " "))
    conditions = {"runtime.precision": '"bf16"', "schedule.warmup_epochs": str(warmup)}
    first, last = map(int, where["seeds"].split("-"))
    for arm in arms:
        task = (arm.task.data, arm.task.model, str(arm.task.epochs), arm.task.lr, arm.subject.label)
        wanted = (where["data"], where["model"], where["epochs"], float(where["lr"]), label)
        if task == wanted and conditions.items() <= dict(arm.task.conditions).items():
            return arm.within(first, last)
    return None


def _table(found: re.Match, arms: Sequence[Arm]) -> str:
    given = dict(part.split("=") for part in found[1].split())
    head, rule, *rows = found[2].splitlines()
    columns = _cells(head)
    made = [_row(_cells(row), columns, arms, given) for row in rows]
    lines = [head, rule, *("| " + " | ".join(cells) + " |" for cells in made)]
    return found[0].replace(found[2], "".join(f"{line}\n" for line in lines))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def _row(cells: list[str], columns: list[str], arms: Sequence[Arm], given: dict[str, str]) -> list[str]:
    if "learning rate" in columns:
        given = given | {"lr": cells[columns.index("learning rate")]}
    name, _, base = re.sub(r" \([^`]*\)$", "", cells[0]).partition(" minus ")
    network = (re.match(r"ResNet-\d+, ", name) or [""])[0]
    arm = find(arms, name, **given)
    if arm is None:
        return cells
    row = Row(arm, lambda other: find(arms, network + other.removesuffix(" at the same rate"), **given))
    return [_cell(row, column, cell, base) for column, cell in zip(columns, cells, strict=True)]


def _cell(row: Row, column: str, cell: str, base: str) -> str:
    """What a column asks of a row; words that stand behind a number stay."""
    runs, lost = list(row.arm.runs.values()), len(row.arm.diverged)
    if re.fullmatch(r"[\d.]+", column):
        return _noise(row, float(column), base)
    if not runs and column not in ("started", "diverged"):
        return cell
    if column.startswith("minus "):
        return _minus(row, column.removeprefix("minus ")) + (_WORDS.search(cell) or [""])[0]
    epochs = [int(epoch) for epoch in re.findall(r"\d+", column)]
    wanted: dict[str, Callable[[], str]] = {
        "seeds": lambda: str(len(runs)),
        "started": lambda: str(len(runs) + lost),
        "diverged": lambda: f"{lost}{(_WORDS.search(cell) or [''])[0]}",
        "ended": lambda: f"{len(runs)} of {len(runs) + lost}",
        "which seeds": lambda: _ranges(list(row.arm.runs)),
        "train loss, epoch 1": lambda: _list(run.loss[0] for run in runs),
        "epoch 10": lambda: _list(run.loss[9] for run in runs),
        "end": lambda: _list((run.loss[-1] for run in runs), 3),
        "train loss (mean), epochs 1, 10, 40": lambda: _list(fmean(r.loss[e - 1] for r in runs) for e in epochs),
        "test error, %": lambda: _list(map(test_error, runs)),
        "mean ± deviation": lambda: row.arm.error.spread(),
    }
    return wanted[column]() if column in wanted else cell


def _minus(row: Row, name: str) -> str:
    other = row.other(name)
    if other is None or other == row.arm:
        return ""
    change = difference(row.arm.error, other.error)
    few = min(change.counts) < FEWEST
    return signed(change.mean) if few else f"{signed(change.mean)} {change.bounds()}"


def _noise(row: Row, level: float, base: str) -> str:
    error = partial(at_noise, what="error", level=level)
    mean, other = row.arm.mean(error), row.other(base) if base else None
    if other is None:
        return mean.spread(1)
    change = difference(mean, other.mean(error))
    return f"{signed(change.mean, 1)} {change.bounds(1)}"


def _list(values: Iterable[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _ranges(seeds: list[int]) -> str:
    """``0 to 2, 10``; two are no range."""

    def told() -> Iterator[str]:
        starts = [seed for seed in seeds if seed - 1 not in seeds]
        ends = [seed for seed in seeds if seed + 1 not in seeds]
        for first, last in zip(starts, ends, strict=True):
            yield f"{first} to {last}" if last > first + 1 else ", ".join(map(str, range(first, last + 1)))

    return ", ".join(told())


if __name__ == "__main__":
    runs = measured()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), runs, verdicts(runs)), encoding="utf-8")
