"""Tables 1, 2, 3 and 6: what was counted beside what the paper prints, with a footnote for every difference."""

import itertools
from collections.abc import Sequence
from typing import Any

from timestepper.report.claims import COUNTS, Claim, Claims, Line, Note
from timestepper.report.tables import Rows, Table, TableCell

FORMULA_NETWORKS = {"timm/resnet34": "ResNet-34", "timm/resnet50": "ResNet-50"}  # that Table 1 is worked out on
NO_REASON = "We know of no reason; a mistake in the claim file would look the same."
_HEADINGS = ("Network", "Params (M), train", "Params (M), infer", "GFLOPs, train", "GFLOPs, infer")  # as COUNTS


def agrees(ours: float, paper: float) -> bool:
    """Equal to the two digits that the paper prints."""
    return f"{ours:.2f}" == f"{paper:.2f}"


def wanted(claims: Claims) -> set[tuple[str, str]]:
    """The (model, controller) pairs that the tables need counted."""
    pairs = {(line.model, line.controller) for line in _counted(claims)}
    formulas = [formula for claim in claims.values() for formula in claim.formula]
    return pairs | {(network, formula.controller) for network in FORMULA_NETWORKS for formula in formulas}


def tables(claims: Claims, chosen: Claims, counted: dict[str, Any], shapes: dict[str, Any]) -> list[Table]:
    """All tables of counts of the chosen claims; any claim file may know why ours differ."""
    notes = [note for claim in claims.values() for note in claim.note]
    made = [complexity_table(claim, counted) for claim in chosen.values() if claim.formula]
    made += [counts_table(claim, counted, notes) for name, claim in chosen.items() if _counted({name: claim})]
    return made + [structure_table(claim, shapes) for claim in chosen.values() if claim.structure]


def agreement(claims: Claims, counted: dict[str, Any]) -> tuple[int, int]:
    """How many of the counts that the paper prints come out to the printed digit, and of how many."""
    known = [(line, quantity) for line in _counted(claims) for quantity in line.paper if quantity in COUNTS]
    pairs = [(count(counted, line, quantity), line.paper[quantity]) for line, quantity in known]
    return sum(ours is not None and agrees(ours, paper) for ours, paper in pairs), len(pairs)


def counts_table(claim: Claim, counted: dict[str, Any], known: Sequence[Note]) -> Table:
    """Tables 2 and 3: parameters and GFLOPs; ``known`` are reasons why ours may differ."""
    notes: list[str] = []

    def pair(line: Line, quantity: str) -> TableCell | str:
        paper, ours = line.paper.get(quantity), count(counted, line, quantity)
        if paper is None:  # the paper prints one number for a plain network
            return ""
        if ours is None:
            return TableCell(f"{paper:.2f} / not counted", tone="quiet")
        text = f"{paper:.2f} / {ours:.2f}"
        if agrees(ours, paper):
            return TableCell(text, tone="good")
        why = next((note.text for note in known if note.applies(line, quantity)), NO_REASON)
        if why not in notes:
            notes.append(why)
        return TableCell(text, (notes.index(why) + 1,), "bad")

    rows = [(line.label, *(pair(line, quantity) for quantity in COUNTS)) for line in _counted({claim.name: claim})]
    caption = f"{claim.place}: parameters (millions) and GFLOPs at 224x224, paper / ours"
    return Table(f"{claim.name}-counts", caption, _HEADINGS, rows, notes)


def complexity_table(claim: Claim, counted: dict[str, Any]) -> Table:
    """Table 1: each formula, its value on two networks, and what the real controllers have and leave behind."""
    notes = (
        "k₁k₂ stands for the length of the descriptor over the channels: 18 for basic blocks (two 3x3 convolutions), "
        "1.25 for bottlenecks (the first and third 1x1). r is 4 and 8.",
        "The formulas leave out biases; the counted total has them.",
    )
    rows = []
    for formula, (model, network) in itertools.product(claim.formula, FORMULA_NETWORKS.items()):
        found = counted[f"{model} {formula.controller}"]
        weights, biases = found["controller_weights"], found["controller_biases"]
        equal, kept = found["formula_train"] == weights, found["formula_inference"] == found["step_sizes"]
        rows.append(
            (
                f"{formula.label}, {network}",
                TableCell(formula.training, (1,)),
                f"{found['formula_train']:,.0f}",
                TableCell(f"{weights:,}", tone="good" if equal else "bad"),
                TableCell(f"{weights + biases:,}", (2,) if biases else ()),
                TableCell(f"{formula.inference} = {found['formula_inference']:,}", tone="good" if kept else "bad"),
            )
        )
    columns = ("Method", "The paper's formula", "Its value", "Our weights", "With biases", "Kept in inference")
    caption = (
        f"{claim.place}: parameters added in training, by the paper's formula and counted on our controllers, and "
        "those that inference keeps"
    )
    return Table(f"{claim.name}-counts", caption, columns, rows, notes)


def structure_table(claim: Claim, shapes: dict[str, Any]) -> Table:
    """Table 6: layer shapes stage by stage; a network of ours may have no such stage."""
    rows: Rows = []
    left = {model: iter(stages) for model, stages in shapes.items()}
    for stage in claim.structure:
        paper, found = _shown(vars(stage)), next(left.get(stage.model, iter(())), None)
        ours = _shown(found) if found else ("no such stage",) * 2
        name = f"{stage.label}, {stage.output_size}x{stage.output_size}"
        cells = (TableCell(o, tone="good" if o == p else "bad") for o, p in zip(ours, paper, strict=True))
        rows += [(f"{name}, paper", *paper), (f"{name}, ours", *cells)]
    columns = ("Stage", "Convolutions", "Controller: input, gates, output")
    return Table(f"{claim.name}-counts", f"{claim.place}: layer shapes, ours beside the paper's", columns, rows)


def _shown(stage: dict[str, Any]) -> tuple[str, str]:
    """The convolutions and the controller's layers of a stage."""
    layers = ", ".join(f"{kernel}x{kernel} {channels}" for kernel, channels in stage["convolutions"])
    parts = ((stage["input"], 1), (stage["gates"], 4), (stage["output"], 1))
    controller = ", ".join(f"[{inputs}, {outputs}] x{times}" for (inputs, outputs), times in parts)
    return f"({layers}) x{stage['blocks']} at {stage['output_size']}", controller


def count(counted: dict[str, Any], line: Line, quantity: str) -> float | None:
    """None where the claim names a network that could not be built."""
    found = counted.get(f"{line.model} {line.controller}")
    if found is None:
        return None
    return found[quantity] / 1e6 if quantity.startswith("parameters") else found[quantity]


def _counted(claims: Claims) -> list[Line]:
    """The lines that have counts of the paper's own."""
    lines = [line for claim in claims.values() for line in claim.row]
    return [line for line in lines if set(line.paper) & set(COUNTS) and not line.origin]
