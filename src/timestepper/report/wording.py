"""What the runs say to a statement, in words: the column "Measured" of its verdict. And the paper's own words."""

import math
import re

from timestepper.report.claims import Statement
from timestepper.report.parts import Demand
from timestepper.report.statistics import CONFIDENCE, EQUAL_CONFIDENCE, Part, refuted, signed


def detail(asked: Demand, statement: Statement, confidence: float) -> str:
    """The parts in words; of many, the one that speaks against the statement the most or says the least for it."""
    lead = [part for part in asked.parts if not part.at]
    many = [part for part in asked.parts if part.at and not part.veto]
    if statement.check == "similar":
        lead = lead[:1]
    told, shown = [_part(part, statement, confidence) for part in lead], lead[:1]
    against = [part.at for part, no in zip(asked.deciding, refuted(asked.deciding), strict=True) if no and part.at]
    if many:
        told.append(f"holds for certain at {sum(part.holds for part in many)} of {len(many)}")
    told += [f"certainly not at {', '.join(against)}"] if against else []
    if many:
        weakest = max(many, key=lambda part: part.estimate.chance(part.bound, part.above))
        told.append(f"weakest at {weakest.at}: {_part(weakest, statement, confidence)}")
        shown = shown or [weakest]
    text = f"{'; '.join(told)}, {shown[0].estimate.seeds(len(statement.sides))}"
    if statement.check == "ranks":
        text = "; ".join(told)
    if asked.lost:
        text = f"of the runs that ended: {text}; {diverged(asked.lost)}"
    if asked.note:
        text += f"; {asked.note}"
    return text + (f"; the paper has {signed(-statement.gain)}" if statement.gain is not None else "")


def _part(part: Part, statement: Statement, confidence: float) -> str:
    if statement.check == "ranks":
        low, high = part.estimate.interval()
        numbers = [signed(math.tanh(value)) for value in (part.estimate.mean, low, high)]
        return f"{part.what} {numbers[0]} [{numbers[1]}, {numbers[2]}]"
    if part.bound:
        confidence = EQUAL_CONFIDENCE  # which decides where a margin is allowed
    unit = " points" if "error" in statement.quantity else ""
    value, bounds = f"{signed(part.estimate.mean, part.digits)}{unit}", part.estimate.bounds(part.digits, confidence)
    if not part.estimate.known:
        named = zip(statement.sides, part.estimate.counts, strict=False)
        single = [side.subject.label for side, seeds in named if seeds == 1]
        bounds = f"(one seed of {' and of '.join(single)}: no interval)" if single else f"({bounds})"
    elif confidence != CONFIDENCE:
        bounds = f"({confidence:.0%} interval {bounds})"
    first = part.what.startswith(("per ", "from "))
    return f"{value} {part.what} {bounds}" if first else f"{part.what} {value} {bounds}"


def diverged(number: int) -> str:
    """``3 runs diverged``."""
    return f"{number} run{'s' * (number > 1)} diverged"


def quoted(words: str) -> str:
    """The paper's own words, whose LaTeX no page draws, in quotation marks."""
    words = re.sub(r"\\ref{\w+}", "\N{HORIZONTAL ELLIPSIS}", words)  # a label of its source
    words = re.sub(r"\\mathbf{(\w+)}", r"\1", words)
    words = re.sub(r"\\frac{([^{}]*)}{([^{}]*)}", r"\1/\2", words)
    words = words.replace("\\Delta ", "\N{GREEK CAPITAL LETTER DELTA}").replace(
        "\\partial ", "\N{PARTIAL DIFFERENTIAL}"
    )
    words = re.sub(r"[${}\\]", "", words)
    return f"\u201c{words}\u201d"
