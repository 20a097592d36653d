"""Writes every verdict in findings.md as the records in results/ have it: `.venv/bin/python docs/fill_findings.py`.

A row belongs to the statement whose words stand in it. Which table has it, and all that is said around the tables,
is for whoever writes the page; a test demands that nothing is left to fill in.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from timestepper.cli.gather import solutions
from timestepper.records import load_diverged, load_records
from timestepper.report.claims import load_claims
from timestepper.report.groups import group
from timestepper.report.statistics import NOT_RUN
from timestepper.report.summary import count_states
from timestepper.report.verdicts import Verdict, headline, judge

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "findings.md"


def verdicts() -> list[Verdict]:
    """On every statement, from what is measured so far."""
    records, problems = load_records(ROOT / "results")
    diverged, damaged = load_diverged(ROOT / "results")
    assert not problems + damaged, problems + damaged
    return judge(load_claims(ROOT / "claims")[0], group(records, diverged), solutions())


def filled(page: str, found: Sequence[Verdict]) -> str:
    """The page with these verdicts in the rows of their statements, and their number."""
    by_text = {verdict.statement.text: verdict for verdict in found if verdict.main}

    def row(line: re.Match) -> str:
        verdict = by_text.get(line["text"])
        return line[0] if verdict is None else f"{line['begin']}{verdict.state} | {_measured(verdict, found)} |"

    page = re.sub(r"^(?P<begin>\|(?: [^|]* \|)? (?P<text>[^|]+) \| )[^|]* \| .*\|$", row, page, flags=re.MULTILINE)
    return re.sub(r"\d+ statements: \d[^.]*\.", f"{count_states(headline(found))}.", page)


def _measured(verdict: Verdict, found: Sequence[Verdict]) -> str:
    """What a statement rests on; where it has not been run in full, what there is of it so far."""
    own = [each for each in found if each.statement is verdict.statement and each.detail.startswith("so far")]
    shown = own[0] if own and verdict.state == NOT_RUN else verdict
    text = re.sub(r"\((tests/[^)]*)\)", r"([test](../\1))", shown.detail).replace("|", r"\|")
    return f"{text} (CIFAR stands in)" if shown.stand_in and text else text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), verdicts()), encoding="utf-8")
