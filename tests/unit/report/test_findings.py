"""The page of findings says what the records say: its verdicts, and the numbers of its tables."""

import importlib.util
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from timestepper.report import quantities
from timestepper.report.quantities import at_noise
from timestepper.report.statistics import average, difference, signed

ROOT = Path(__file__).parents[3]
_DIFFERENCE = r"[+\N{MINUS SIGN}]\d+\.\d+(?: points)? \[[^\]]*\d, [^\]]*\]"
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def filling():
    """The script that writes the tables."""
    spec = importlib.util.spec_from_file_location("fill_findings", ROOT / "docs" / "fill_findings.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module")
def arms(filling):
    return filling.measured()


@pytest.fixture(scope="module")
def found(filling, arms):
    return filling.verdicts(arms)


def test_nothing_is_left_to_fill_in(filling, arms, found):
    assert filling.filled(FINDINGS, arms, found) == FINDINGS, "docs/fill_findings.py mends it"


def test_every_statement_stands_in_the_findings_once(found):
    texts = [verdict.statement.text for verdict in found if verdict.main]
    assert [text for text in texts if FINDINGS.count(f"| {text} | ") != 1] == []


def test_every_verdict_is_filled_in(filling, arms, found):
    main = [verdict for verdict in found if verdict.main]
    other = [replace(verdict, state="a state", detail="measured anew | so") for verdict in main]
    rows = [line for line in filling.filled(FINDINGS, arms, other).splitlines() if line.endswith(" |")]
    for verdict in main:
        assert any(f"| {verdict.statement.text} | a state | measured anew \\| so" in row for row in rows)


def test_every_table_of_runs_is_filled_in(filling, arms, found):
    """Whatever number stands in a cell, the measured one comes back; but for the one row that has no records."""
    tables = re.findall(r"^<!-- runs:.* -->\n\n(.*)\n.*\n((?:\|.*\n)+)", FINDINGS, re.MULTILINE)
    assert len(tables) == FINDINGS.count("<!-- runs:") == 15
    page = FINDINGS
    for head, rows in tables:
        spared = 2 if head.startswith("| | learning rate") else 1
        for row in rows.splitlines():
            cells = row.split(" | ")
            wrong = [
                re.sub(r"^[^a-z]*", lambda numbers: re.sub(r"\d", "7", numbers[0]), cell) for cell in cells[spared:]
            ]
            page = page.replace(row, " | ".join([*cells[:spared], *wrong]))
    mended = filling.filled(page, arms, found)
    lost = [old for old, new in zip(FINDINGS.splitlines(), mended.splitlines(), strict=True) if old != new]
    assert {row.partition(" | ")[0] for row in lost} == {"| `gain` as it was then"}


# The first tables of findings and README, row by row: how a row begins, its seeds, and what stands in it.
# {lstm-plain} is the measured error of one arm minus that of another, with its interval, {plain} the error of one.
FIRST_TABLE = {
    "a CIFAR ResNet with batch norm": (
        "9 of each",
        "minus plain: warm-up {warm-plain}, half start {half-plain}. "
        "Mean of 120 and 300 epochs (3 of each there): half start just open, {both half-plain}. ",
    ),
    "the same, and you want learned step sizes": ("9 of each", "minus plain: `lstm` {lstm-plain} |"),
    "the same network, and you warm up already": (
        "9 of each",
        "`lstm` with warm-up minus warm-up alone {both-warm}, `lstm` alone minus warm-up alone {lstm-warm} |",
    ),
    "the same network, and its blocks start at 0.5 already": ("9 of each", "`lstm` minus half start {lstm-half} |"),
    "the same network on CIFAR-100": (
        "5 of each",
        "minus plain: half start {half100-plain100}, `lstm` {lstm100-plain100} |",
    ),
    "your blocks start at 0 and": ("3 and 9", "start at 0 minus half start {zero-half} |"),
    "noisy inputs": ("9 of each, and 3 of each at 300", "`lstm` minus plain {noise}; 120 epochs alone {noise120}. "),
    "a ResNet without norms": (
        "12 and 3",
        "`channel(0.1)` minus Fixup's starting weights alone {channel-fixup}, with its multiplier {channel-fixup+} "
        "(certain by itself only). It errs at {channel} %, batch norm at {plain} % |",
    ),
    "a small vision transformer": (
        "8 of each, 7 of `lstm`, 3 of the others, against 5 of plain where fresh",
        "minus plain: `channel(0.1)` {vit+channel-vit}, `lstm` {vit+lstm-vit}, `gain` {vit+gain-vit}; "
        "of fresh seeds alone `fixed(0.1)` {vit+fixed-fresh} (certain by itself only). Plain errs at {vit} % |",
    ),
    "that transformer": ("8 of each, 7 of `lstm`", "minus plain: `channel(0.1)` {vit+noise}; `lstm` is open, "),
}
README_TABLE = {
    "a CIFAR ResNet with batch norm": (
        "| minus plain: warm-up {warm-plain}, half start {half-plain} "
        "(mean of 120 and 300 epochs, 3 seeds there: {both half-plain}, just open) |"
    ),
    "the same, and you want learned step sizes": "| minus plain: `lstm` {lstm-plain} |",
    "the same network, and you warm up already": (
        "| `lstm` with warm-up minus warm-up alone {both-warm}, `lstm` alone minus warm-up alone {lstm-warm} |"
    ),
    "the same network, and its blocks start at 0.5 already": "| `lstm` minus half start {lstm-half} |",
    "the same network on CIFAR-100, 5 seeds of each": (
        "| minus plain: half start {half100-plain100}, `lstm` {lstm100-plain100} |"
    ),
    "noisy inputs": "| `lstm` minus plain {noise}; 120 epochs alone {noise120} |",
    "a ResNet without norms, 12 seeds |": (
        "| `channel(0.1)` minus Fixup's starting weights (3 seeds) alone {channel-fixup}, "
        "with its multiplier (one learned number per block) {channel-fixup+} (certain by itself only). "
        "It errs at {channel} %, batch norm at {plain} % |"
    ),
    "a small vision transformer, trained from scratch on CIFAR-10, 8 seeds of each, 7 of `lstm`, 3 of `fixed(0.1)` |": (
        "| minus plain: `channel(0.1)` {vit+channel-vit}, `lstm` {vit+lstm-vit}; "
        "of the seeds alone that had no part in choosing (3, and 5 of plain) `fixed(0.1)` {vit+fixed-fresh} "
        "(certain by itself only). Plain errs at {vit} % |"
    ),
    "that transformer": "| minus plain: `channel(0.1)` {vit+noise}; `lstm` is open, ",
}
_VIT = {"model": "timm/vit_tiny_patch16_224", "lr": "0.001", "warmup": "5"}
_NORM_FREE = {"model": "cifar/nf_resnet56"}
NAMED = {
    "plain": ("plain", {}),
    "half": ("half start", {}),
    "zero": ("start at 0", {}),
    "warm": ("warm-up", {}),
    "lstm": ("lstm", {}),
    "both": ("lstm with warm-up", {}),
    "plain100": ("plain", {"data": "cifar100"}),
    "half100": ("half start", {"data": "cifar100"}),
    "lstm100": ("lstm", {"data": "cifar100"}),
    "channel": ("channel(0.1)", _NORM_FREE),
    "fixup": ("Fixup's weights", _NORM_FREE),
    "fixup+": ("Fixup's weights with its multiplier", _NORM_FREE),
    "vit": ("plain", _VIT),
    "fresh": ("plain", _VIT | {"seeds": "10-18"}),
    "vit+channel": ("channel(0.1)", _VIT),
    "vit+lstm": ("lstm", _VIT),
    "vit+fixed": ("fixed(0.1)", _VIT | {"seeds": "10-18"}),
    "vit+gain": ("gain", _VIT),
}


@pytest.fixture(scope="module")
def named(filling, arms):
    return {short: filling.find(arms, name, **where) for short, (name, where) in NAMED.items()}


def with_numbers(text, named, arms):
    """The text with every number measured."""

    def measured(found):
        low, _, high = found[1].partition("-")
        if low in ("noise", "noise120"):
            return at_both_schedules(arms, "lstm", partial(at_noise, what="error", level=0.2), 1, low == "noise120")
        if low == "both half":
            return at_both_schedules(arms, named["half"].subject.label, quantities.test_error, 2)
        if low == "vit+noise":
            return certain_noise(named["vit+channel"], named["vit"])
        if not high:
            return f"{named[low].error.mean:.1f}"
        change = difference(named[low].error, named[high].error)
        return f"{signed(change.mean)} {change.bounds()}"

    return re.sub(r"\{([^}]*)\}", measured, text)


def at_both_schedules(arms, label, measure, digits, short=False):
    """ResNet-56 on CIFAR-10 without warm-up: an arm minus plain, mean of both schedules or the short one alone."""
    wanted = ("cifar/resnet56", "cifar10", 0)
    usual = [arm for arm in arms if (arm.task.model, arm.task.data, arm.task.warmup) == wanted]
    ours, plain = ([arm for arm in usual if arm.subject.label == each] for each in (label, "plain"))
    pairs = {
        one.task.epochs: difference(one.mean(measure), other.mean(measure))
        for one in ours
        for other in plain
        if one.task == other.task and len(one.runs) >= 3
    }
    assert set(pairs) == {120, 300}
    found = pairs[120] if short else average([*pairs.values()])
    return f"{signed(found.mean, digits)} {found.bounds(digits)}"


def certain_noise(low, high):
    """The smallest and the largest difference of errors at the noise levels that the tables name."""
    noises = [partial(at_noise, what="error", level=level) for level in (0.2, 0.3, 0.4)]
    changes = [difference(low.mean(noise), high.mean(noise)) for noise in noises]
    assert all(change.interval()[0] > 0 for change in changes)
    least, most = min(change.mean for change in changes), max(change.mean for change in changes)
    return f"{signed(least, 1)} to {signed(most, 1)}"


def rows(text, beginning):
    return [line for line in text.splitlines() if line.startswith(f"| {beginning}")]


def test_every_difference_of_the_first_table_stands_beside_its_name(named, arms):
    table = FINDINGS.partition("start:what-to-do")[2].partition("end:what-to-do")[0]
    count = 0
    for beginning, (seeds, text) in FIRST_TABLE.items():
        (row,) = rows(table, beginning)
        expected = with_numbers(text, named, arms)
        assert expected in row
        assert f"| {seeds} |" in row
        count += len(re.findall(_DIFFERENCE, expected))
    assert count == len(re.findall(_DIFFERENCE, table))


def test_every_difference_of_the_readme_stands_beside_its_name(named, arms):
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Should I use it")[2].partition("\n## ")[0]
    count = 0
    for beginning, text in README_TABLE.items():
        (row,) = rows(table, beginning)
        expected = with_numbers(text, named, arms)
        assert expected in row
        count += len(re.findall(_DIFFERENCE, expected))
    assert count == len(re.findall(_DIFFERENCE, table))


def test_the_seeds_that_had_no_part_in_the_questions_say_what_the_findings_say(named):
    (told,) = re.findall(r"- Seeds 3 to 8 alone.*?(?= - )", " ".join(FINDINGS.split()))
    fresh = {name: named[name].within(3).error for name in ("plain", "warm", "lstm", "half")}
    expected = [
        f"{signed(change.mean)} {change.bounds()}"
        for low, high in (("lstm", "plain"), ("warm", "plain"), ("half", "plain"), ("lstm", "warm"), ("lstm", "half"))
        for change in [difference(fresh[low], fresh[high])]
    ]
    assert re.findall(_DIFFERENCE, told) == expected


def test_the_seeds_of_the_first_table_are_those_of_its_arms(named):
    """Numbers in the order of the arms of a row; runs that diverged are told."""
    for beginning, (seeds, text) in FIRST_TABLE.items():
        if "noise}" in text:  # two schedules; the arms of the row above
            continue
        used = [name for pair in re.findall(r"\{([^} ]*-[^} ]*)\}", text) for name in pair.split("-")]
        found = [named[name] for name in used]
        assert not any(arm.diverged for arm in found), beginning
        counts = dict.fromkeys(str(len(arm.runs)) for arm in found)
        assert re.findall(r"\d+", seeds) == list(counts), beginning
        assert (len(counts) == 1) == seeds.endswith("of each"), beginning


def test_that_warm_up_ends_where_the_controller_does_is_measured(named):
    """It trains under another condition, so no statement compares it."""
    change = difference(named["lstm"].error, named["warm"].error)
    assert f"`lstm` minus warm-up is {signed(change.mean)} {change.bounds()}" in FINDINGS
    assert -0.3 < change.interval(0.9)[0] < change.interval(0.9)[1] < 0.3  # equal, as the page says
