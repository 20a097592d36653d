import pytest

from timestepper.report import load_claims
from timestepper.report.claims import FOLDER, read_claim

GOOD = """
name = "good"
place = "Table 9"
title = "A table"

[[row]]
label = "ResNet"
data = "digits"
model = "cifar/resnet8"
controller = "plain"
paper = { test_error = 1.0 }
"""
STATEMENT = """
[[statement]]
id = "one"
text = "It is better"
check = "lower"
quantity = "test_error"
low = { controller = "lstm" }
high = { controller = "plain" }
on = [{ data = "digits", model = "cifar/resnet8" }]
"""


def test_every_shipped_claim_is_sound():
    claims, problems = load_claims()
    assert not problems
    assert set(claims) == {path.stem for path in FOLDER.glob("*.toml")}
    names = {f"fig{number}" for number in (1, 3, 4, 5)} | {f"table{number}" for number in range(1, 7)}
    assert names <= set(claims)
    identifiers = [statement.id for claim in claims.values() for statement in claim.statement]
    assert len(identifiers) == len(set(identifiers))


def test_the_papers_gains_are_the_differences_of_its_own_errors():
    claims, _ = load_claims()
    for name in ("table3", "table5"):
        errors = {(row.data, row.model, row.controller): row.paper["test_error"] for row in claims[name].row}
        for statement in (found for found in claims[name].statement if found.gain is not None):
            place = (statement.on[0]["data"], statement.on[0]["model"])
            assert statement.gain == pytest.approx(errors[(*place, "plain")] - errors[(*place, "lstm")]), statement.id


def test_what_the_text_says_of_table_3_beyond_its_rows_is_there():
    statement = {found.id: found for found in load_claims()[0]["table3"].statement}["table3-deeper"]
    assert [model.rpartition("resnet")[2] for model in statement.over] == ["18", "34", "50", "101"]


def test_appendix_b_follows_its_own_rules():
    claims, _ = load_claims()
    for stage in claims["table6"].structure:
        hidden, channels = stage.output
        assert stage.gates == (2 * hidden, hidden)
        assert stage.input[1] == hidden
        assert stage.convolutions[-1][1] == channels


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("label =", "lable =", "unknown key lable; did you mean label?"),
        ("test_error = 1.0", "test_eror = 1.0", "key 'test_eror' is not known"),
        ("test_error = 1.0", 'test_error = "1.0"', "paper.test_error must be a number, not '1.0'"),
        ('name = "good"', 'name = "other"', "name is 'other'"),
        ('data = "digits"\n', "", "key data is missing"),
        ("[[row]]", "[row", "not readable as TOML"),
        ('check = "lower"', 'check = "lowest"', "check 'lowest' is not known"),
        ('high = { controller = "plain" }\n', "", "key high is missing"),
        ('{ controller = "plain" }', '{ contoller = "plain" }', "statement one: high must be { controller"),
        ('{ controller = "lstm" }', '{ controller = "ltsm" }', "statement one: low controller 'ltsm' is not known"),
        ('controller = "plain"\n', 'controller = "none"\n', "ResNet: controller 'none' is not known"),
        ('on = [{ data = "digits", ', "on = [{ ", "statement one: key data is missing"),
        ('on = [{ data = "digits"', 'on = [{ data = "digit"', "statement one: data 'digit' is not known"),
        ('{ data = "digits", model', '{ data = "digits", modle', "statement one: key 'modle' is not known"),
        ('model = "cifar/resnet8"\n', 'model = "cifar/resent8"\n', "ResNet: model 'cifar/resent8' is not known"),
        ('on = [{ data = "digits", model = "cifar/resnet8" }]', "", "statement one: key on is missing"),
        ('quantity = "test_error"', 'quantity = "last_stage"', "quantity 'last_stage' is not known"),
        ('quantity = "test_error"', 'quantity = "noise_error"', "key noise is missing"),
        ('check = "lower"', 'check = "near"', "quantity 'test_error' is not known"),
        ('check = "lower"', 'check = "trend"\ndirection = "rising"', "key over is missing"),
        ('check = "lower"', 'check = "trend"\nover = ["cifar/resnet8"]\ndirection = "up"', "direction 'up' is not"),
        ("on = [", 'over = ["cifar/resent8"]\non = [', "statement one: model 'cifar/resent8' is not known"),
        ("on = [", 'stand_in = [{ data = "digit" }]\non = [', "statement one: data 'digit' is not known"),
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "near"\nquantity = "first_steps"\ngroup = { controller = "lstm" }',
            "statement one: key value is missing",
        ),
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "near"\nquantity = "first_steps"\ngroup = { controller = "lstm" }\nvalue = 0.5',
            "statement one: key margin is missing",
        ),
    ],
)
def test_a_mistake_is_named_and_the_other_files_still_count(tmp_path, before, after, complaint):
    text = GOOD + STATEMENT
    assert before in text
    (tmp_path / "good.toml").write_text(text.replace(before, after, 1))
    (tmp_path / "other.toml").write_text(GOOD.replace("good", "other"))
    claims, problems = load_claims(tmp_path)
    assert list(claims) == ["other"]
    assert len(problems) == 1
    assert str(tmp_path / "good.toml") in problems[0]
    assert complaint in problems[0]


def test_a_sound_file_is_read(tmp_path):
    (tmp_path / "good.toml").write_text(GOOD + STATEMENT)
    claim = read_claim(tmp_path / "good.toml")
    assert claim.row[0].paper == {"test_error": 1.0}
    assert claim.statement[0].on == ({"data": "digits", "model": "cifar/resnet8"},)


def test_a_folder_without_claims_says_so(tmp_path):
    claims, problems = load_claims(tmp_path)
    assert not claims
    assert str(tmp_path) in problems[0]
