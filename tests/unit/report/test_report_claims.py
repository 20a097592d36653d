import typing
from dataclasses import replace

import pytest

from timestepper.adapters import LIBRARIES
from timestepper.cli.gather import compute
from timestepper.experiment.load import as_dict, load, sections
from timestepper.experiment.measure import NOISE_LEVELS
from timestepper.experiment.schema import Optimiser, Recipe, Schedule
from timestepper.report import claim_checks, load_claims
from timestepper.report.claim_files import FOLDER, read_claim
from timestepper.report.groups import subject_of

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
                errors[statement.on[0]["data"], (side or {}).get("model", statement.on[0].get("model")), controller]
                for side, controller in ((statement.high, "plain"), (statement.low, "lstm"))
            )
            assert statement.gain == pytest.approx(high - low), statement.id


def test_what_needs_no_run_names_a_test_that_there_is():
    settled = [s for claim in load_claims()[0].values() for s in claim.statement if s.check == "settled"]
    assert [s.id for s in settled if not s.by] == ["theory-channel-wise"]
    assert all((FOLDER.parent / s.by).is_file() for s in settled if s.by)


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
        ('model = "cifar/resnet8" }]', 'model = "cifr/resnet8" }]', "statement one: model 'cifr/resnet8' is not known"),
        ('model = "cifar/resnet8" }]', 'model = "resnet8" }]', "statement one: model 'resnet8' is not known"),
        ('model = "cifar/resnet8" }]', 'model = "cifar/resnet9" }]', "'cifar/resnet9' is not known; CIFAR ResNets"),
        ('model = "cifar/resnet8" }]', 'model = "cifar/resnet2" }]', "'cifar/resnet2' is not known; CIFAR ResNets"),
        (
            'model = "cifar/resnet8" }]',
            'model = "cifar/resnet²" }]',
            "statement one: model 'cifar/resnet²' is not known",
        ),
        (
            'model = "cifar/resnet8" }]',
            'model = "cifar/resnet8_32x4d" }]',
            "resnet8_32x4d' is not known; CIFAR ResNets",
        ),
        ('{ data = "digits", model', '{ data = "digits", modle', "statement one: key 'modle' is not known"),
        ('model = "cifar/resnet8"\n', 'model = "cifar/resent8"\n', "ResNet: model 'cifar/resent8' is not known"),
        ('on = [{ data = "digits", model = "cifar/resnet8" }]', "", "statement one: key on is missing"),
        ('quantity = "test_error"', 'quantity = "last_stage"', "quantity 'last_stage' is not known"),
        ('quantity = "test_error"', 'quantity = "noise_error"', "key noise is missing"),
        ('check = "lower"', 'check = "near"', "quantity 'test_error' is not known"),
        ('check = "lower"', 'check = "trend"\ndirection = "rising"', "key over is missing"),
        ('check = "lower"', 'check = "trend"\nover = ["cifar/resnet8"]\ndirection = "up"', "direction 'up' is not"),
        ("on = [", 'over = ["cifar/resent8"]\non = [', "statement one: model 'cifar/resent8' is not known"),
        ("test_error = 1.0", "test_error = 101.0", "paper of ResNet: test_error must be a number from 0 to 100"),
        ("test_error = 1.0", "test_error = -1.0", "paper of ResNet: test_error must be a number from 0 to 100"),
        ("on = [", "gain = -0.3\non = [", "statement one: gain must be a number from 0 to 100, not -0.3"),
        ("on = [", "gain = nan\non = [", "statement one: gain must be a number from 0 to 100, not nan"),
        ("on = [", "margin = -0.5\non = [", "statement one: margin must be a number from 0 to 100, not -0.5"),
        ('"lstm"', '"fixed(0.010)"', "statement one: low controller 'fixed(0.010)' must be written 'fixed(0.01)'"),
        ('"lstm"', '"lstm, weight decay 0"', "must be written 'lstm, weight decay 0.0'"),
        ('"lstm"', '"lstm, descriptr visible"', "controller 'lstm, descriptr visible' is not known"),
        ('"lstm"', '"lstm, descriptor mean"', "controller 'lstm, descriptor mean' is not known"),
        ('"lstm"', '"plain, descriptor visible"', "controller 'plain, descriptor visible' is not known"),
        ('"lstm"', '"lstm, last norm starts at 1"', "controller 'lstm, last norm starts at 1' is not known"),
        (
            'quantity = "test_error"',
            'quantity = "noise_error"\nnoise = [0.1, 0.25]',
            "statement one: noise 0.25 is never measured",
        ),
        ("[[statement]]", f"{STATEMENT}[[statement]]", "good.toml has this id already"),
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
        (
            'check = "lower"\nquantity = "test_error"',
            'check = "settled"\nstate = "equal"\nwhy = "so"',
            "statement one: state 'equal' is not known",
        ),
        ('check = "lower"\nquantity = "test_error"', 'check = "settled"\nstate = "not run"', "key why is missing"),
        ('{ controller = "lstm" }', '{ controller = "lstm", model = "resnet8" }', "low model 'resnet8' is not known"),
        ('{ controller = "lstm" }', '{ controller = "lstm", data = "digits" }', "low must be { controller = … }"),
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
        ("table4", '"C-3_1" = 0.510', '"X" = 0.510', "paper of TSC-50: block 'X' is not known"),
        ("table4", '"C-3_1" = 0.510', '"C-3_0" = 0.510', "paper of TSC-50: block 'C-3_0' is not known"),
        ("table6", "gates = [32, 16]", "gates = [32]", "structure 1 (TSC-ResNet-34): gates must be two numbers"),
        ("table6", "input = [2304, 32]", "input = [2304]", "structure 2 (TSC-ResNet-34): input must be two numbers"),
        ("table6", "output = [16, 64]", "output = []", "structure 1 (TSC-ResNet-34): output must be two numbers"),
        ("table6", "[[3, 64], ", "[[3, 64, 1], ", "structure 1 (TSC-ResNet-34): convolutions[1] must be two numbers"),
        ("table1", '"two_fc"', '"plain"', "TSC_2fc: controller 'plain' is not known"),
        ("training", "lr = 0.1", "lrr = 0.1", "schedule of imagenet: optimiser: key 'lrr' is not known"),
        ("training", '"crop_flip"', '"crop_flp"', "schedule of cifar10: augment 'crop_flp' is not known"),
        ("training", "every = 30", "evry = 30", "schedule of imagenet: schedule: key 'evry' is not known"),
        ("training", "lr = 0.1", 'lr = "0.1"', "schedule of imagenet: optimiser.lr must be a number, not '0.1'"),
        ("training", "every = 30", "every = 30.5", "schedule of imagenet: schedule.every must be a whole number"),
        (
            "training",
            "lr = 0.1",
            "lr = nan",
            "schedule of imagenet: optimiser.lr must be a number from 0 to 1e+06, not",
        ),
        (
            "training",
            "[0.5, 0.75]",
            "[0.5, inf]",
            "schedule of cifar10: schedule.milestones must be a number from 0 to",
        ),
        ("training", "epochs = 300", "epochs = -300", "schedule of cifar10: epochs must be 1 or more, not -300"),
        ("training", "[0.5, 0.75]", '["0.5"]', "schedule of cifar10: schedule.milestones[1] must be a number"),
        ("table3", "gflops_train = 1.81", "gflops_train = 1e300", "paper of TSC-ResNet-18: gflops_train must be"),
        ("table4", '"C-3_1" = 0.510', '"C-3_1" = 51.0', "paper of TSC-50: C-3_1 must be a number from 0 to 1, not 51"),
        ("table4", '"C-3_1" = 0.510', '"C-3_1" = -inf', "paper of TSC-50: C-3_1 must be a number from 0 to 1"),
        ("table6", "blocks = 3", "blocks = -3", "structure 1 (TSC-ResNet-34): blocks must be 1 or more, not -3"),
        ("table6", "gates = [32, 16]", "gates = [0, 16]", "structure 1 (TSC-ResNet-34): gates must be 1 or more"),
        ("table5", 'id = "table5-', 'id = "table4-depth"\n# ', "statement table4-depth: "),
    ],
)
def test_a_mistake_in_a_shipped_file_is_named_and_the_others_still_count(tmp_path, name, before, after, complaint):
    claims, problems = claims_with(tmp_path, f"{name}.toml", before, after)
    assert {path.stem for path in FOLDER.glob("*.toml")} - set(claims) == {name}
    (problem,) = problems
    assert problem.startswith(f"{tmp_path / name}.toml: {complaint}")


def test_what_a_schedule_may_name_is_what_a_recipe_has():
    """The report reads claims without the schema, so the two lists must be kept alike; noise levels likewise."""
    recipe = dict(sections(Recipe()))
    parts = {"optimiser": Optimiser, "schedule": Schedule}
    assert {part: typing.get_type_hints(kind) for part, kind in parts.items()} == claim_checks.SETTINGS
    (augment,) = (field for field, _ in recipe["data"] if field.name == "augment")
    assert augment.metadata["choices"] == claim_checks.AUGMENTS
    assert claim_checks.NOISE_LEVELS == NOISE_LEVELS
    assert tuple(LIBRARIES) == claim_checks.LIBRARIES


OPTIONS = {
    "start": ("identity", "0.1"),
    "reduction": ("2",),
    "descriptor": ("visible",),
    "descriptor_gradient": ("false",),
    "weight_decay": ("0", "0.00001", "5e-4"),
}


def test_every_subject_that_a_run_can_have_may_stand_in_a_claim(tmp_path):
    fields = dict(sections(Recipe()))["controller"]
    assert {field.name for field, _ in fields} == {"kind", "value", "module", *OPTIONS}
    starts = ((), ("model.last_norm_init=0",), ("model.last_norm_init=0.5",))
    more = [[f"controller.{key}={value}" for value in values] for key, values in OPTIONS.items()]
    options = [(), *((one,) for values in more for one in values), tuple(values[0] for values in more)]
    kinds = [(f"controller.kind={kind}",) for kind in ("lstm", "two_fc", "independent")]
    kinds += [("controller.kind=fixed", f"controller.value={value}") for value in (1, 0.01, 0.00002)]
    stepped = [(*kind, *start, *option) for kind in kinds for start in starts for option in options]
    for changes in (*(("controller.kind=none", *start) for start in starts), *stepped):
        subject = subject_of(as_dict(load("paper/cifar10", list(changes))))
        (tmp_path / "good.toml").write_text((GOOD + STATEMENT).replace('"lstm"', f'"{subject}"'))
        assert read_claim(tmp_path / "good.toml").statement[0].low == {"controller": subject}


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
    assert claim.statement[0].on == ({"data": "digits", "model": "cifar/resnet8"},)


def test_a_folder_without_claims_says_so(tmp_path):
    claims, problems = load_claims(tmp_path)
    assert not claims
    assert str(tmp_path) in problems[0]
