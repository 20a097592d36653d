import itertools
import json
from dataclasses import field, make_dataclass

import pytest

from timestepper.errors import RecipeError, UnknownNameError
from timestepper.recipe import load as loading
from timestepper.recipe import schema
from timestepper.recipe.load import as_dict, identity, load
from timestepper.recipe.sets import names
from timestepper.records.subject import subject_of
from timestepper.report.claims import load_claims
from timestepper.report.statistics import NO_EFFECT
from timestepper.sweeps.plan import open_sets

MINI = """
set = "mini"
title = "Digits"
seeds = [0, 1]
short = ["run.epochs=1"]
measure = ["noise"]

[[train]]
base = "smoke/digits"
vary = { "controller.kind" = ["none", "lstm"] }
hours = 0.5
"""


@pytest.mark.parametrize("name", names())
def test_every_shipped_set_loads(name):
    assert all(wanted.sets == (name,) for wanted in open_sets(name))


@pytest.mark.parametrize("name", [name for name, path in names().items() if path.parent.name == "paper"])
def test_every_set_of_the_paper_has_a_short_schedule(name):
    assert all(wanted.sets == (name,) for wanted in open_sets(name, short=True))


def test_every_table_and_figure_has_a_set():
    claims, _ = load_claims()
    assert set(claims) - {"training", "theory", "ours"} <= set(names())  # these need no runs of their own


def test_every_row_of_the_paper_is_asked_for_unless_its_runs_could_say_nothing():
    claims, _ = load_claims()
    for name, claim in claims.items():
        asked = {
            (w.recipe.data.name, w.recipe.model.name, subject_of(as_dict(w.recipe)))
            for w in (open_sets(name) if name in names() else [])
        }
        settled = any(statement.state == NO_EFFECT for statement in claim.statement)
        rows = {(row.data, row.model, row.subject) for row in (*claim.row, *claim.steps) if not settled}
        assert rows <= asked, name


def test_every_statement_can_be_decided_by_its_set():
    claims, _ = load_claims()
    for claim in (claim for claim in claims.values() if not claim.ours):
        for statement in claim.statement:
            if statement.quantity == "solution" or statement.check in ("settled", "ranks"):
                continue
            asked = {
                (w.recipe.data.name, w.recipe.model.name, subject_of(as_dict(w.recipe)), w.recipe.run.seed)
                for w in open_sets({"theory": "starts"}.get(claim.name, claim.name))
            }
            sides = [part for part in (statement.low, statement.high, statement.group) if part]
            for place, side, seed in itertools.product(statement.on, sides, (0, 1, 2)):
                for model in statement.over or (side.model or place.model,):
                    assert (place.data, model, side.subject, seed) in asked, statement.id


def test_expected_hours_are_those_of_the_measured_steps():
    """ResNet-50: 100 epochs of 1,281,167 images in batches of 256, 36.9 ms each; so for the others that have a time."""
    measured = {"timm/resnet50": 36.9, "timm/resnet101": 56.2, "cifar/resnet56": 3.2, "cifar/resnet506": 25.4}
    found = {(w.recipe.model.name, w.recipe.data.name): w.hours for w in open_sets("all")}
    for (model, data), hours in found.items():
        updates = 100 * (1_281_167 // 256) if data == "imagenet" else 300 * (50_000 // 64)
        if model in measured:
            assert hours == pytest.approx(updates * measured[model] / 3.6e6, rel=0.05)


def test_the_ablation_has_its_controls():
    wanted = open_sets("ablation56")
    subjects = {subject_of(as_dict(item.recipe)).label for item in wanted}
    assert subjects == {
        *("plain", "lstm", "two fc", "independent", "fixed 0.5", "fixed 0.01"),
        *("plain, last norm starts at 0.5", "plain, last norm starts at 0"),
    }
    assert len(wanted) == 24
    assert {(item.recipe.run.epochs, item.recipe.data.batch_size) for item in wanted} == {(120, 128)}
    assert all(item.measures == ("noise", "stability") for item in wanted)
    rest = {identity({**as_dict(i.recipe), "controller": {}, "model": {}, "run": {}}) for i in wanted}
    assert len(rest) == 1  # nothing else differs


def test_a_run_of_several_sets_is_run_once():
    everything = open_sets("all")
    identities = [wanted.identity for wanted in everything]
    assert len(identities) == len(set(identities))
    shared = next(w for w in everything if w.recipe.model.name == "cifar/resnet56" and w.recipe.data.name == "cifar10")
    assert set(shared.sets) >= {"fig4", "fig5"}
    assert shared.measures == ("noise", "stability")


def test_only_what_is_learned_makes_an_identity():
    def of(*changes):
        return identity(as_dict(load("paper/cifar10", changes)))

    assert of() == of("data.root=/elsewhere", "runtime.compile=false", "run.checkpoint_seconds=60", "data.workers=4")
    assert of() != of("run.seed=1")
    assert of() != of("runtime.precision=tf32")
    without = as_dict(load("paper/cifar10"))
    del without["controller"]["descriptor_gradient"]  # as in a record from before the field existed
    assert identity(without) == of()
    assert identity(json.loads(json.dumps(without))) == of()  # a record has lists where a recipe has tuples
    plain = as_dict(load("paper/cifar10", ["controller.kind=none"]))
    older = {**plain, "controller": {**plain["controller"], "descriptor": "visible", "reduction": 2}}
    assert identity(older) == identity(plain)  # as in a record from when a plain network was so many runs


def test_a_new_setting_moves_no_folder(monkeypatch):
    """Runs stop and go on over versions; a name that changed would begin them anew."""
    before = {wanted.label for wanted in open_sets("ablation56")}
    novel = make_dataclass(
        "Novel", [("novelty", bool, schema.setting(False, ""))], bases=(schema.RuntimeSettings,), frozen=True
    )
    recipe = make_dataclass("More", [("runtime", novel, field(default=novel()))], bases=(schema.Recipe,), frozen=True)
    monkeypatch.setattr(loading, "Recipe", recipe)
    assert {wanted.label for wanted in open_sets("ablation56")} == before
    told = as_dict(load("paper/cifar10"))
    assert identity(told) != identity({**told, "runtime": {**told["runtime"], "novelty": True}})


def test_folders_do_not_depend_on_where_the_data_is():
    one, two = (open_sets("fig4", overrides=(f"data.root={root}",)) for root in ("/a", "/b"))
    assert [wanted.label for wanted in one] == [wanted.label for wanted in two]
    assert len({wanted.label for wanted in one}) == len(one)


def test_a_short_schedule_takes_less_time(tmp_path):
    (tmp_path / "mini.toml").write_text(MINI)
    whole, short = (open_sets(str(tmp_path / "mini.toml"), short=short) for short in (False, True))
    assert [wanted.hours for wanted in whole] == [0.5] * 4
    assert [wanted.hours for wanted in short] == pytest.approx([0.5 / 3] * 4)
    assert {wanted.recipe.run.epochs for wanted in short} == {1}


def test_the_time_of_a_set_is_that_of_its_own_epochs(tmp_path):
    own = MINI.replace("hours", 'overrides = ["run.epochs=2"]\nhours')
    (tmp_path / "mini.toml").write_text(own)
    assert {wanted.hours for wanted in open_sets(str(tmp_path / "mini.toml"))} == {0.5}
    assert {wanted.hours for wanted in open_sets(str(tmp_path / "mini.toml"), short=True)} == {0.25}


def test_what_the_user_says_comes_last(tmp_path):
    (tmp_path / "mini.toml").write_text(MINI)
    found = open_sets(str(tmp_path / "mini.toml"), short=True, overrides=("run.epochs=7", "controller.kind=two_fc"))
    assert {(wanted.recipe.run.epochs, wanted.recipe.controller.kind) for wanted in found} == {(7, "two_fc")}
    assert [wanted.recipe.run.seed for wanted in found] == [0, 1]  # both kinds have become the same runs


def test_what_makes_no_other_run_is_not_varied(tmp_path):
    (tmp_path / "mini.toml").write_text(MINI.replace('"controller.kind"', '"data.root"'))
    with pytest.raises(RecipeError, match=r"set mini: train\[1\]: vary: data\.root makes no other runs"):
        open_sets(str(tmp_path / "mini.toml"))


@pytest.mark.parametrize("own", [True, False], ids=["in the file", "by the user"])
def test_a_seed_beside_the_seeds_is_refused(tmp_path, own):
    path = tmp_path / "mini.toml"
    path.write_text(MINI + 'overrides = ["run.seed=7"]\n' * own)
    with pytest.raises(RecipeError, match=r"set mini: train\[1\]: run\.seed=7 would change nothing, because"):
        open_sets(str(path), overrides=() if own else ("run.seed=7",))


def test_all_is_the_paper_s_and_sets_add_up_what_they_measure(tmp_path, monkeypatch):
    for path, measure, seeds in (
        ("a/study", "stability", "[0, 5]"),
        ("paper/one", "noise", "[0]"),
        ("paper/two", "stability", "[0]"),
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        name = path.rpartition("/")[2]
        text = MINI.replace('"mini"', f'"{name}"').replace('"noise"', f'"{measure}"').replace("[0, 1]", seeds)
        (tmp_path / f"{path}.toml").write_text(text)
    monkeypatch.setattr("timestepper.recipe.sets.FOLDERS", (tmp_path,))
    assert list(names()) == ["one", "two", "study"]
    paper, everything = open_sets("all"), open_sets("everything")
    assert [(wanted.sets, wanted.measures) for wanted in paper] == [(("one", "two"), ("noise", "stability"))] * 2
    assert [wanted.recipe.run.seed for wanted in everything] == [0, 0, 5, 5]
    assert everything[0].sets == ("one", "two", "study")


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("seeds =", "seed =", "seed is not known; did you mean seeds? allowed are set, title, seeds"),
        ("hours = 0.5", 'hours = "long"', "train[1].hours must be a number"),
        ("hours = 0.5", "hours = true", "train[1].hours must be a number"),
        ("hours = 0.5", "hours = 0.5\noverrides = [3]", "train[1].overrides[1] must be text, not 3"),
        ('["none", "lstm"]', '"lstm"', "train[1].vary.controller.kind must be a list, not 'lstm'"),
        ("seeds = [0, 1]", 'seeds = ["0"]', "seeds[1] must be a whole number, not '0'"),
        (MINI[MINI.index("[[train]]") :], "train = [1]", "train[1] must be a table, not 1"),
        ('base = "smoke/digits"\n', "", "train[1].base is missing"),
        ('["noise"]', '["nosie"]', "measure[1] cannot be 'nosie' (allowed: one of noise, stability)"),
        ('"controller.kind"', '"controller.knd"', "controller.knd is not known; did you mean controller.kind?"),
        ("[[train]]", "[[train", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_set_is_named(tmp_path, before, after, complaint):
    path = tmp_path / "mini.toml"
    path.write_text(MINI.replace(before, after))
    with pytest.raises(RecipeError) as error:
        open_sets(str(path))
    assert complaint in str(error.value)


def test_a_whole_number_of_hours_will_do(tmp_path):
    (tmp_path / "mini.toml").write_text(MINI.replace("hours = 0.5", "hours = 2"))
    assert {wanted.hours for wanted in open_sets(str(tmp_path / "mini.toml"))} == {2}


def test_a_set_without_a_shorter_schedule_does_not_pretend_to_have_one():
    assert {wanted.recipe.run.epochs for wanted in open_sets("baseline")} == {300, 120}
    with pytest.raises(RecipeError, match=r"baseline\.toml: has no short schedule"):
        open_sets("baseline", short=True)
    assert open_sets("table1", short=True) == []  # there is nothing to train
    assert {wanted.recipe.run.epochs for wanted in open_sets("all", short=True)} == {120, 30}


def test_an_unknown_set_lists_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"fig1.*table6.*ablation56.*, all, everything$"):
        open_sets("table9")
