"""The page of findings says what the records say: every verdict of its tables is the one that the code gives."""

import re
from pathlib import Path

import pytest

from timestepper.cli.gather import solutions
from timestepper.records import load_records
from timestepper.records.subject import HALF_START, PLAIN
from timestepper.report.claims import load_claims
from timestepper.report.groups import group
from timestepper.report.statistics import STATES, difference, signed
from timestepper.report.verdicts import headline, judge

ROOT = Path(__file__).parents[3]
FINDINGS = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def found():
    records, problems = load_records(ROOT / "results")
    assert not problems
    return judge(load_claims(ROOT / "claims")[0], group(records), solutions())


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


def test_every_interval_of_our_questions_is_the_measured_one(found):
    for verdict in found:
        if verdict.main and verdict.claim.ours:
            assert f"| {verdict.detail} |" in FINDINGS, verdict.statement.id


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
