from dataclasses import replace

import pytest

from timestepper.cli.gather import compute
from timestepper.report import counts
from timestepper.report.claims import load_claims


@pytest.fixture(scope="module")
def claims():
    return load_claims()[0]


@pytest.fixture(scope="module")
def counted(computed):
    return computed.counted


def test_what_agrees_and_what_does_not_is_known(claims, counted):
    differing = {
        (row.label, quantity)
        for name in ("table2", "table3")
        for row in claims[name].row
        for quantity, paper in row.paper.items()
        if quantity in counts.COUNTS and not counts.agrees(counts.count(counted, row, quantity), paper)
    }
    parameters = {item for item in differing if item[1].startswith("parameters")}
    assert parameters == {
        ("TSC_2fc-ResNet", "parameters_train"),
        ("TSC-ResNeXt-50", "parameters_train"),
        ("TSC-ResNeXt-101", "parameters_train"),
    }
    inference = {label.removeprefix("TSC-") for label, quantity in differing if quantity == "gflops_inference"}
    assert inference == {"ResNet-101", "SENet-50", "SENet-101"}


def test_numbers_that_the_footnotes_quote(counted):
    assert f"{counted['timm/resnet50 two_fc']['parameters_train'] / 1e6:.2f}" == "31.23"
    assert f"{counted['timm/resnext50_32x4d lstm']['parameters_train'] / 1e6:.2f}" == "27.47"
    small = counted["timm/resnet18 lstm"]
    assert f"{small['gflops_inference'] + small['gflops_matrices']:.2f}" == "1.82"


def test_the_first_paragraph_counts_what_agrees(claims, counted):
    assert counts.agreement(claims, counted) == (44, 62)


def reasons(table, label, quantity):
    """The footnotes of one cell."""
    (row,) = (row for row in table.rows if row[0].text == label)
    return [table.notes[number - 1] for number in row[1 + counts.COUNTS.index(quantity)].notes]


def test_a_difference_is_explained_by_its_own_footnote(claims, counted):
    table2, table3 = (
        counts.counts_table(claims[name], counted, claims["table3"].note) for name in ("table2", "table3")
    )
    found = [
        reasons(table2, "TSC_2fc-ResNet", "parameters_train"),
        reasons(table3, "TSC-ResNeXt-50", "parameters_train"),
        reasons(table3, "ResNet-101", "gflops_inference"),
        reasons(table3, "TSC-ResNet-18", "gflops_train"),
    ]
    starts = ("The paper's own formula", "The first 1x1 convolution", "Multiply-adds of", "Ours adds the controller's")
    for texts, start in zip(found, starts, strict=True):
        assert len(texts) == 1
        assert texts[0].startswith(start)


def test_every_difference_has_a_footnote(claims, counted, computed):
    tables = counts.tables(claims, claims, counted, computed.shapes)
    assert [table.name for table in tables] == [f"table{number}-counts" for number in (1, 2, 3, 6)]
    for table in tables:
        assert counts.NO_REASON not in table.notes
        for row in table.rows:
            assert all(cell.notes for cell in row if cell.tone == "bad"), row
    structure = tables[-1]
    assert all(cell.tone == "good" for row in structure.rows[1::2] for cell in row[1:])
    table = counts.counts_table(claims["table3"], counted, ())  # as a mistyped number: named, and nothing else is lost
    assert table.notes == (counts.NO_REASON,)


def test_a_claim_file_that_cannot_be_read_leaves_the_other_tables(claims, counted, computed):
    without = {name: claim for name, claim in claims.items() if name != "table6"}
    assert {f"{model} {kind}" for model, kind in counts.wanted(without)} == set(counted)
    assert len(counts.tables(without, without, counted, {})) == 3


def test_a_network_that_no_library_has_is_left_out(claims, counted, computed, capsys):
    row = replace(claims["table3"].row[0], model="timm/resnet19")
    table = counts.counts_table(replace(claims["table3"], row=(row,)), counted, ())
    assert table.rows[0][2].text == "11.69 / not counted"
    stage = replace(claims["table6"].structure[0], model="timm/resnet19")
    odd = {"table6": replace(claims["table6"], structure=(stage,))}
    assert counts.structure_table(odd["table6"], computed.shapes).rows[1][1].text == "no such stage"
    assert not compute(odd).shapes
    assert "resnet19" in capsys.readouterr().err


def test_table_1_counts_the_weights_of_the_real_controllers(claims, counted):
    table = counts.complexity_table(claims["table1"], counted)
    assert len(table.rows) == 6
    assert all(row[3].tone == row[5].tone == "good" for row in table.rows)
    assert [row[5].text for row in table.rows] == ["Σ L_b C_b = 3,776", "Σ L_b C_b = 15,104"] * 3
    more = {key: {**found, "step_sizes": found.get("step_sizes", 0) + 1} for key, found in counted.items()}
    assert {row[5].tone for row in counts.complexity_table(claims["table1"], more).rows} == {"bad"}


def test_markdown_has_every_row_and_note(claims, counted):
    table = counts.counts_table(claims["table2"], counted, claims["table3"].note)
    text = table.markdown()
    assert "| TSC_2fc-ResNet | 31.58 / 31.23[1] | 25.57 / 25.57 | 3.88 / 3.87[2] | 3.86 / 3.86 |" in text
    assert text.count("\n[") == len(table.notes) == 2
