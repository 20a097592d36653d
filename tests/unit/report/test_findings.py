"""The page of findings says what the records say: every verdict of its tables is the one that the code gives."""

import re
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from timestepper.cli.gather import solutions
from timestepper.records import load_diverged, load_records
from timestepper.records.subject import HALF_START, PLAIN
from timestepper.report.claims import load_claims
from timestepper.report.groups import group
from timestepper.report.quantities import at_noise
from timestepper.report.statistics import STATES, average, difference, signed
from timestepper.report.verdicts import headline, judge

ROOT = Path(__file__).parents[3]
_DIFFERENCE = r"[+\N{MINUS SIGN}]\d+\.\d+(?: points)? \[[^\]]*\d, [^\]]*\]"
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found():
    records, problems = load_records(ROOT / "results")
    diverged, damaged = load_diverged(ROOT / "results")
    assert not problems + damaged
    return judge(load_claims(ROOT / "claims")[0], group(records, diverged), solutions())


def test_every_statement_stands_in_the_findings_with_its_verdict(found):
    missing = [
        f"{verdict.statement.text} | {verdict.state}"
        for verdict in found
        if verdict.main and f"| {verdict.statement.text} | {verdict.state} |" not in FINDINGS
    ]
    assert not missing


def test_the_findings_count_the_verdicts(found):
    states = [verdict.state for verdict in headline(found)]
    counted = ", ".join(f"{states.count(state)} {state}" for state in STATES if state in states)
    assert f"{len(states)} statements: {counted}." in re.sub(r"\s+", " ", FINDINGS)


def test_every_interval_of_a_statement_is_the_measured_one(found):
    for verdict in found:
        if verdict.main and verdict.claim.ours:
            assert f"| {verdict.detail} |" in FINDINGS, verdict.statement.id
        elif verdict.main:
            (row,) = (line for line in FINDINGS.splitlines() if f"| {verdict.statement.text} |" in line)
            for interval in re.findall(r"\[[^\]]*\d, [^\]]*\]", verdict.detail):
                assert interval in row, verdict.statement.id


def test_every_difference_of_the_first_tables_is_a_measured_one(found):
    """With its interval: as a verdict has it, or as any two arms on one network and data give it."""
    arms = group(load_records(ROOT / "results")[0])
    measured = [_numbers(text) for verdict in found for text in re.findall(_DIFFERENCE, verdict.detail)]
    for low, high in permutations(arms, 2):
        if (low.task.data, low.task.model, low.task.epochs) == (high.task.data, high.task.model, high.task.epochs):
            change = difference(low.error, high.error)
            measured.append([change.mean, *change.interval()])
    usual = [arm for arm in arms if arm.task.model == "cifar/resnet56" and arm.task.data == "cifar10"]
    lstm, plain = ([arm for arm in usual if arm.subject.label == label] for label in ("lstm", "plain"))
    for level in (0.2, 0.3):
        noise = partial(at_noise, what="error", level=level)
        pairs = [(one.mean(noise), other.mean(noise)) for one in lstm for other in plain if one.task == other.task]
        together = average([difference(*pair) for pair in pairs])
        measured.append([together.mean, *together.interval()])
    table = FINDINGS.partition("start:what-to-do")[2].partition("end:what-to-do")[0]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Should I use it")[2].partition("\n## ")[0]
    named = [_numbers(text.replace(" points", "")) for text in re.findall(_DIFFERENCE, table)]
    gains = [_numbers(text) for text in re.findall(r"\d\.\d+ [^\d|]*\[[^\]]* to [^\]]*\]", readme)]
    assert len(named) > 15
    assert len(gains) > 6
    for triple in named + gains:
        turned = [-triple[0], -triple[2], -triple[1]]  # "0.49 points off [0.16 to 0.82]"
        assert any(_is(triple, each) or (triple in gains and _is(turned, each)) for each in measured), triple


def _is(printed, measured):
    """To the digits that are printed, one or two."""
    digits = 1 if all(round(10 * number, 6).is_integer() for number in printed) else 2
    return all(abs(a - b) < 0.51 * 10**-digits for a, b in zip(printed, measured, strict=True))


def _numbers(text):
    return [float(number.replace("\N{MINUS SIGN}", "-")) for number in re.findall(r"[+\N{MINUS SIGN}]?\d+\.\d+", text)]


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
