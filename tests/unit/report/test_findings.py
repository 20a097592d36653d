"""The page of findings says what the records say: its verdicts, and the numbers of its tables."""

import importlib.util
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from timestepper.records import load_diverged, load_records
from timestepper.records.subject import HALF_START, PLAIN
from timestepper.report.groups import group
from timestepper.report.quantities import at_noise
from timestepper.report.quantities import test_error as error_of
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
def found(filling):
    return filling.verdicts()


def test_every_verdict_is_the_measured_one(filling, found):
    assert filling.filled(FINDINGS, found) == FINDINGS, "docs/fill_findings.py mends it"


def test_every_statement_stands_in_the_findings_once(found):
    texts = [verdict.statement.text for verdict in found if verdict.main]
    assert [text for text in texts if FINDINGS.count(f"| {text} | ") != 1] == []


def test_a_verdict_that_has_changed_is_filled_in(filling, found):
    """Each state and each number in turn, so that no row is passed over."""
    main = [verdict for verdict in found if verdict.main]
    other = [replace(verdict, state="a state", detail="measured anew | so") for verdict in main]
    rows = [line for line in filling.filled(FINDINGS, other).splitlines() if line.endswith(" |")]
    for verdict in main:
        assert any(f"| {verdict.statement.text} | a state | measured anew \\| so" in row for row in rows)


# The first tables of findings and README, row by row: how a row begins, its seeds, and what stands in it.
# {lstm-plain} is the measured error of one arm minus that of another, with its interval.
FIRST_TABLE = {
    "a CIFAR ResNet with batch norm": (
        "9 of each",
        "minus plain: warm-up {warm-plain}, half start {half-plain}.",
    ),
    "the same, and you want learned step sizes": ("9 of each", "minus plain: `lstm` {lstm-plain} |"),
    "you warm up, or your blocks start at 0.5": (
        "9 of each",
        "`lstm` minus warm-up {lstm-warm}, `lstm` minus half start {lstm-half} |",
    ),
    "the same network on CIFAR-100": (
        "5 of each",
        "Minus plain: half start {half100-plain100}, `lstm` {lstm100-plain100} |",
    ),
    "your blocks start at 0": ("3 and 9", "start at 0 minus half start {zero-half} |"),
    "noisy inputs": ("9 of each, and 3 of each at 300", "`lstm` minus plain {noise} |"),
    "a ResNet without norms": ("12 and 3", "`channel(0.1)` minus Fixup's starting weights alone {channel-fixup}."),
    "a small vision transformer": (
        "8 of each, 7 of `lstm`, 3 of `gain`",
        "Minus plain: `channel(0.1)` {vit+channel-vit}, `lstm` {vit+lstm-vit}, `gain` {vit+gain-vit} |",
    ),
}
README_TABLE = {
    "a CIFAR ResNet with batch norm": "| warm-up {warm-plain}, half start {half-plain} |",
    "the same, and you want learned step sizes": "| `lstm` {lstm-plain} |",
    "warm-up, or blocks that start at 0.5": "| `lstm` minus warm-up {lstm-warm}, `lstm` minus half start {lstm-half} |",
    "the same network on CIFAR-100, 5 seeds of each": "| half start {half100-plain100}, `lstm` {lstm100-plain100} |",
    "noisy inputs": "`lstm` {noise} |",
    "a ResNet without norms": "`channel(0.1)` minus Fixup's starting weights alone (3 seeds) {channel-fixup} |",
    "a small vision transformer, trained from scratch on CIFAR-10, 8 seeds of each, 7 of `lstm` |": (
        "| `channel(0.1)` {vit+channel-vit}, `lstm` {vit+lstm-vit} (plain errs at 16.6 %) |"
    ),
}
_VIT = "timm/vit_tiny_patch16_224"
_NORM_FREE = "cifar/nf_resnet56"
_HALF = "plain, last norm starts at 0.5"
NAMED = {  # label, data, network and epochs of warm-up
    "plain": ("plain",),
    "half": (_HALF,),
    "zero": ("plain, last norm starts at 0",),
    "warm": ("plain", "cifar10", "cifar/resnet56", 1.0),
    "lstm": ("lstm",),
    "plain100": ("plain", "cifar100"),
    "half100": (_HALF, "cifar100"),
    "lstm100": ("lstm", "cifar100"),
    "channel": ("channel 0.1", "cifar10", _NORM_FREE),
    "fixup": ("plain, network start fixup", "cifar10", _NORM_FREE),
    "vit": ("plain", "cifar10", _VIT, 5.0),
    "vit+channel": ("channel 0.1", "cifar10", _VIT, 5.0),
    "vit+lstm": ("lstm", "cifar10", _VIT, 5.0),
    "vit+gain": ("gain", "cifar10", _VIT, 5.0),
}


@pytest.fixture(scope="module")
def arms():
    return group(load_records(ROOT / "results")[0], load_diverged(ROOT / "results")[0])


def named(arms, label, data="cifar10", model="cifar/resnet56", warmup=0.0):
    """The arm of the short schedule, in bf16 and at the recipe's learning rate."""
    wanted = {"runtime.precision": '"bf16"', "schedule.warmup_epochs": str(warmup)}
    (arm,) = (
        arm
        for arm in arms
        if (arm.subject.label, arm.task.data, arm.task.model, arm.task.epochs) == (label, data, model, 120)
        and wanted.items() <= dict(arm.task.conditions).items()
        and arm.task.lr in (0.1, 1e-3)
    )
    return arm


def filled(text, arms):
    """The text with every difference measured, and how many there are."""

    def measured(found):
        low, _, high = found[1].partition("-")
        if low != "noise":
            change = difference(*(named(arms, *NAMED[name]).error for name in (low, high)))
            return f"{signed(change.mean)} {change.bounds()}"
        usual = [arm for arm in arms if (arm.task.model, arm.task.data) == ("cifar/resnet56", "cifar10")]
        lstm, plain = ([arm for arm in usual if arm.subject.label == label] for label in ("lstm", "plain"))
        noise = partial(at_noise, what="error", level=0.2)
        pairs = [(one.mean(noise), other.mean(noise)) for one in lstm for other in plain if one.task == other.task]
        assert len(pairs) == 2
        together = average([difference(*pair) for pair in pairs])
        return f"{signed(together.mean, 1)} {together.bounds(1)}"

    return re.subn(r"\{([^}]*)\}", measured, text)


def rows(text, beginning):
    return [line for line in text.splitlines() if line.startswith(f"| {beginning}")]


def test_every_difference_of_the_first_table_stands_beside_its_name(arms):
    table = FINDINGS.partition("start:what-to-do")[2].partition("end:what-to-do")[0]
    count = 0
    for beginning, (seeds, text) in FIRST_TABLE.items():
        (row,) = rows(table, beginning)
        expected, number = filled(text, arms)
        assert expected in row
        assert f"| {seeds} |" in row
        count += number
    assert count == len(re.findall(_DIFFERENCE, table))


def test_every_difference_of_the_readme_stands_beside_its_name(arms):
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Should I use it")[2].partition("\n## ")[0]
    count = 0
    for beginning, text in README_TABLE.items():
        (row,) = rows(table, beginning)
        expected, number = filled(text, arms)
        assert expected in row
        count += number
    assert count == len(re.findall(_DIFFERENCE, table))


def test_the_seeds_of_the_first_table_are_those_of_its_arms(arms):
    """Numbers in the order of the arms of a row; runs that diverged are told."""
    for beginning, (seeds, text) in FIRST_TABLE.items():
        if beginning == "noisy inputs":  # two schedules
            continue
        used = [name for pair in re.findall(r"\{([^}]*)\}", text) for name in pair.split("-")]
        found = [named(arms, *NAMED[name]) for name in used]
        assert not any(arm.diverged for arm in found), beginning
        counts = dict.fromkeys(str(len(arm.runs)) for arm in found)
        assert re.findall(r"\d+", seeds) == list(counts), beginning
        assert (len(counts) == 1) == seeds.endswith("of each"), beginning


def test_the_table_without_norms_counts_what_ended_and_diverged(arms):
    for label, name in (("channel 0.1", "`channel(0.1)`"), ("gain", "`gain`")):
        for lr in (0.1, 0.2):
            (arm,) = (
                arm.since(10)
                for arm in arms
                if arm.task.model == _NORM_FREE and arm.subject.label == label and arm.task.lr == lr
            )
            started = len(arm.runs) + len(arm.diverged)
            (row,) = rows(FINDINGS, f"{name} | {lr} | ")
            assert f"| {len(arm.runs)} of {started} | {len(arm.diverged)}" in row
            assert f"| {errors(arm)} | {arm.error.spread()} |" in row


def test_the_table_of_the_transformer_is_the_measured_one(arms):
    section = FINDINGS.partition("## In a small transformer")[2].partition("\n## ")[0]
    found = {label: named(arms, label, model=_VIT, warmup=5.0) for label in ("plain", "channel 0.1")}
    for label in ("lstm", "depth 0.5", "scalar 0", "gain"):
        arm = named(arms, label, model=_VIT, warmup=5.0)
        kind, _, number = label.partition(" ")
        (row,) = rows(section, f"`{kind}({number})`" if number else f"`{kind}`")
        minus = (difference(arm.error, other.error) for other in found.values())
        expected = [errors(arm), arm.error.spread(), *(f"{signed(each.mean)} {each.bounds()}" for each in minus)]
        assert row.endswith(f"| {' | '.join(expected)} |")


def errors(arm):
    return ", ".join(f"{error_of(run):.2f}" for run in arm.runs.values())


def test_the_arm_with_warm_up_is_the_measured_one():
    """It trains under another condition, so no statement compares it."""
    arms = [
        arm
        for arm in group(load_records(ROOT / "results")[0])
        if (arm.task.data, arm.task.model, arm.task.epochs) == ("cifar10", "cifar/resnet56", 120)
        and dict(arm.task.conditions)["runtime.precision"] == '"bf16"'
    ]
    warm = {arm.subject: arm for arm in arms if dict(arm.task.conditions)["schedule.warmup_epochs"] == "1.0"}[PLAIN]
    cold = {arm.subject: arm for arm in arms if dict(arm.task.conditions)["schedule.warmup_epochs"] == "0.0"}
    for subject in (PLAIN, HALF_START):
        change = difference(warm.error, cold[subject].error)
        assert f"| {signed(change.mean)} {change.bounds()} |" in FINDINGS
    lstm = difference(next(arm for arm in cold.values() if arm.subject.label == "lstm").error, warm.error)
    assert f"`lstm` minus warm-up is {signed(lstm.mean)} {lstm.bounds()}" in FINDINGS
    assert -0.3 < lstm.interval(0.9)[0] < lstm.interval(0.9)[1] < 0.3  # equal, as the page says
