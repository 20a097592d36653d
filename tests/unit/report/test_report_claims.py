from dataclasses import replace

import pytest

from timestepper.cli.gather import compute
from timestepper.recipe.load import as_dict, load
from timestepper.records.subject import subject_of
from timestepper.report import names
from timestepper.report.claims import FOLDER, Place, load_claims, read_claim
from timestepper.sites import LIBRARIES

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
            high, low = (
                errors[statement.on[0].data, (side and side.model) or statement.on[0].model, controller]
                for side, controller in ((statement.high, "plain"), (statement.low, "lstm"))
            )
            assert statement.gain == pytest.approx(high - low), statement.id


def test_what_needs_no_run_names_a_test_that_there_is():
    settled = [s for claim in load_claims()[0].values() for s in claim.statement if s.check == "settled"]
    assert settled
    assert all((FOLDER.parent / s.by).is_file() for s in settled)


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
        ("label =", "lable =", "row[1].lable is not known; did you mean row[1].label?"),
        ("test_error = 1.0", "test_eror = 1.0", "paper of ResNet: test_eror = 1 must be one of test_error"),
        ("test_error = 1.0", 'test_error = "1.0"', "row[1].paper.test_error must be a number, not '1.0'"),
        ('name = "good"', 'name = "other"', "name is 'other'"),
        ('data = "digits"\n', "", "row[1].data is missing"),
        ("[[row]]", "[row", "not valid TOML"),
        ('check = "lower"', 'check = "lowest"', "statement[1].check cannot be 'lowest' (allowed: one of lower"),
        ('high = { controller = "plain" }\n', "", "statement[1] high is missing"),
        (
            '{ controller = "plain" }',
            '{ contoller = "plain" }',
            "high.contoller is not known; did you mean",
        ),
        (
            '{ controller = "lstm" }',
            '{ controller = "ltsm" }',
            "statement[1].low.controller cannot be 'ltsm': allowed are plain, lstm",
        ),
        ('controller = "plain"\n', 'controller = "nane"\n', "row[1].controller cannot be 'nane'"),
        ('on = [{ data = "digits", ', "on = [{ ", "statement[1].on[1].data is missing"),
        ('on = [{ data = "digits"', 'on = [{ data = "digit"', "statement[1].on[1].data cannot be 'digit'"),
        (
            'model = "cifar/resnet8" }]',
            'model = "cifr/resnet8" }]',
            "on[1].model cannot be 'cifr/resnet8'",
        ),
        ('model = "cifar/resnet8" }]', 'model = "cifar/resnet9" }]', "'cifar/resnet9': CIFAR ResNets"),
        ('model = "cifar/resnet8" }]', 'model = "cifar/resnet2" }]', "'cifar/resnet2': CIFAR ResNets"),
        (
            'model = "cifar/resnet8" }]',
            'model = "cifar/resnet²" }]',
            "on[1].model cannot be 'cifar/resnet²'",
        ),
        (
            'model = "cifar/resnet8" }]',
            'model = "cifar/resnet8_32x4d" }]',
            "resnet8_32x4d': CIFAR ResNets",
        ),
        ('model = "cifar/resnet8"\n', 'model = "cifar/resent8"\n', "row[1].model cannot be 'cifar/resent8'"),
        ('on = [{ data = "digits", model = "cifar/resnet8" }]', "", "statement[1] on is missing"),
        ('quantity = "test_error"', 'quantity = "last_stage"', "quantity 'last_stage' is not known"),
        ('quantity = "test_error"', 'quantity = "noise_error"', "statement[1] noise is missing"),
        ('check = "lower"', 'check = "near"', "quantity 'test_error' is not known"),
        ('check = "lower"', 'check = "trend"\ndirection = "rising"', "statement[1] over is missing"),
        (
            'check = "lower"',
            'check = "trend"\nover = ["cifar/resnet8"]\ndirection = "up"',
            "direction cannot be 'up'",
        ),
        ("on = [", 'over = ["cifar/resent8"]\non = [', "statement[1].over[1] cannot be 'cifar/resent8'"),
        ('"plain" }\non', '"lstm" }\non', "statement[1] low and high are the same runs"),
        (
            'check = "lower"',
            'check = "most"\nover = ["cifar/resnet8"]',
            "statement[1] over must name several networks, each of another depth",
        ),
        (
            'check = "lower"',
            'check = "most"\nover = ["timm/resnet50", "timm/resnext50_32x4d"]',
            "statement[1] over must name several networks, each of another depth",
        ),
        (
            'check = "lower"',
            'check = "keeps"\ndirection = "rising"\nover = ["cifar/resnet8", "cifar/resnet14"]',
            "statement[1] a place names a model, which over does",
        ),
        ("test_error = 1.0", "test_error = 101.0", "paper of ResNet: test_error = 101 must be from 0 to 100"),
        ("on = [", "gain = -0.3\non = [", "statement[1].gain cannot be -0.3"),
        ('"lstm"', '"fixed"', "statement[1].low.controller cannot be 'fixed'"),
        ('"lstm"', '"lstm(0.5)"', "statement[1].low.controller cannot be 'lstm(0.5)'"),
        ('"lstm"', '"lstm", descriptr = "visible"', "low.descriptr is not known; did you mean statement[1].low.desc"),
        ('"lstm"', '"plain", last_norm_init = -1', "statement[1].low.last_norm_init cannot be -1.0"),
        (
            'quantity = "test_error"',
            'quantity = "noise_error"\nnoise = [0.1, 0.25]',
            "statement[1].noise[2] cannot be 0.25: records have",
        ),
        ("[[statement]]", f"{STATEMENT}[[statement]]", "good.toml has this id already"),
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "near"\nquantity = "first_steps"\ngroup = { controller = "lstm" }',
            "statement[1] value is missing",
        ),
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "settled"\nstate = "equal"\nwhy = "so"',
            "statement[1].state cannot be 'equal'",
        ),
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "settled"\nstate = "not run"',
            "why is missing",
        ),
        ('{ controller = "lstm" }', '{ controller = "lstm", data = "digits" }', "statement[1].low.data is not known"),
    ],
)
def test_a_mistake_is_named_and_the_other_files_still_count(tmp_path, before, after, complaint):
    assert before in GOOD + STATEMENT
    (tmp_path / "good.toml").write_text((GOOD + STATEMENT).replace(before, after, 1))
    (tmp_path / "other.toml").write_text(GOOD.replace("good", "other"))
    claims, (problem,) = load_claims(tmp_path)
    assert list(claims) == ["other"]
    assert problem.startswith(f"{tmp_path / 'good.toml'}: ")
    assert complaint in problem


def claims_with(tmp_path, name, before, after, count=1):
    """All shipped claims, one of them changed in so many places."""
    for path in FOLDER.glob("*.toml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / name).read_text()
    assert before in text
    (tmp_path / name).write_text(text.replace(before, after, count))
    return load_claims(tmp_path)


@pytest.mark.parametrize(
    ("name", "before", "after", "complaint"),
    [
        ("table4", '"C-3_1" = 0.510', '"C-3_2" = 0.510', "paper of TSC-50 and TSC-101: only one has C-3_1, C-3_2"),
        ("table4", '"C-3_1" = 0.510', '"X" = 0.510', "paper of TSC-50: X = 0.51 must be one of test_error"),
        ("table4", '"C-3_1" = 0.510', '"C-3_0" = 0.510', "paper of TSC-50: C-3_0 = 0.51 must be one of"),
        ("table6", "gates = [32, 16]", "gates = [32]", "structure[1].gates must have 2 values, not [32]"),
        ("table6", "[[3, 64], ", "[[3, 64, 1], ", "structure[1].convolutions[1] must have 2 values, not [3, 64, 1]"),
        ("table1", '"two_fc"', '"plain"', "formula[2].controller cannot be 'plain'"),
        (
            "training",
            "lr = 0.1",
            "lrr = 0.1",
            "schedule[1].optimiser.lrr is not known; did you mean",
        ),
        ("training", '"crop_flip"', '"crop_flp"', "schedule[2].data.augment cannot be 'crop_flp'"),
        ("training", "lr = 0.1", 'lr = "0.1"', "schedule[1].optimiser.lr must be a number, not '0.1'"),
        (
            "training",
            "[0.5, 0.75]",
            "[0.5, inf]",
            "schedule[2].schedule.milestones[2] cannot be inf",
        ),
        ("training", "epochs = 300", "epochs = -300", "schedule[2].epochs cannot be -300 (allowed: at least 1)"),
        (
            "table3",
            "gflops_train = 1.81",
            "gflops_train = 1e300",
            "paper of TSC-ResNet-18: gflops_train = 1e+300 must be from 0 to",
        ),
        ("table4", '"C-3_1" = 0.510', '"C-3_1" = 51.0', "paper of TSC-50: C-3_1 = 51 must be from 0 to 1"),
        ("table6", "blocks = 3", "blocks = -3", "structure[1].blocks cannot be -3"),
        ("table6", "gates = [32, 16]", "gates = [0, 16]", "structure[1].gates[1] cannot be 0"),
        ("table5", 'id = "table5-', 'id = "table4-depth"\n# ', "statement table4-depth: "),
    ],
)
def test_a_mistake_in_a_shipped_file_is_named_and_the_others_still_count(tmp_path, name, before, after, complaint):
    claims, problems = claims_with(tmp_path, f"{name}.toml", before, after)
    assert {path.stem for path in FOLDER.glob("*.toml")} - set(claims) == {name}
    (problem,) = problems
    assert problem.startswith(f"{tmp_path / name}.toml: {complaint}")


def test_libraries_are_those_of_the_runs():
    """The report never imports torch, so the lists must be kept alike."""
    assert tuple(LIBRARIES) == names.LIBRARIES


OPTIONS = {
    "start": ('"identity"', '"0.1"'),
    "reduction": ("2",),
    "descriptor": ('"visible"',),
    "descriptor_gradient": ("false",),
    "weight_decay": ("0", "0.00001", "5e-4"),
}


def test_every_subject_that_a_run_can_have_may_stand_in_a_claim(tmp_path):
    starts = ((), ("last_norm_init = 0",), ("last_norm_init = 0.5",))
    more = [[f"{key} = {value}" for value in values] for key, values in OPTIONS.items()]
    options = [(), *((one,) for values in more for one in values), tuple(values[0] for values in more)]
    kinds = ("lstm", "two_fc", "independent", "fixed(1)", "fixed(0.01)", "fixed(0.00002)")
    stepped = [(kind, *start, *option) for kind in kinds for start in starts for option in options]
    for kind, *settings in (*(("plain", *start) for start in starts), *stepped):
        wanted = ", ".join([f'"{kind}"', *settings])
        good = GOOD + STATEMENT.replace('"plain"', '"channel(0.3)"')
        (tmp_path / "good.toml").write_text(good.replace('"lstm"', wanted))
        changes = [f"controller.{setting.replace(' ', '')}" for setting in settings if "last_norm" not in setting]
        changes += [f"model.{setting.replace(' ', '')}" for setting in settings if "last_norm" in setting]
        recipe = load("paper/cifar10", [f"controller.kind={kind.replace('plain', 'none')}", *changes])
        assert read_claim(tmp_path / "good.toml").statement[0].low.subject == subject_of(as_dict(recipe))


def test_a_network_that_no_library_has_is_named_with_its_file(tmp_path, capsys):
    claims, problems = claims_with(tmp_path, "table3.toml", "timm/resnet18", "timm/resnet188", count=-1)
    assert not problems
    claims = {"table1": claims["table1"], "table3": replace(claims["table3"], row=claims["table3"].row[:2])}
    claims["table1"] = replace(claims["table1"], formula=())
    assert compute(claims).counted == {}
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: table3.toml: not counted: ")
    assert "resnet188" in warnings[0]


def test_a_sound_file_is_read(tmp_path):
    (tmp_path / "good.toml").write_text(GOOD + STATEMENT)
    claim = read_claim(tmp_path / "good.toml")
    assert claim.row[0].paper == {"test_error": 1.0}
    assert claim.statement[0].on == (Place("digits", "cifar/resnet8"),)


def test_a_folder_without_claims_says_so(tmp_path):
    claims, problems = load_claims(tmp_path)
    assert not claims
    assert str(tmp_path) in problems[0]
