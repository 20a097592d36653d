from dataclasses import replace

import pytest

from timestepper import api, controllers, data, names
from timestepper.engine import optimiser, runtime, schedule
from timestepper.errors import RecipeError
from timestepper.recipe import sets
from timestepper.recipe.load import (
    as_dict,
    describe_fields,
    differences,
    dump,
    find,
    load,
    loads,
    sections,
    shipped,
    short_name,
)
from timestepper.recipe.schema import Recipe
from timestepper.runs import measure


def test_an_empty_recipe_is_the_defaults():
    assert loads("", "x.toml") == Recipe()
    assert Recipe().data.name == "digits"


def test_choices_are_what_the_parts_know():
    """The schema repeats them, because most of the parts need torch and a recipe does not."""
    listed = [(section, field) for section, fields in sections(Recipe()) for field, _ in fields]
    assert {(section, f.name): f.metadata["choices"] for section, f in listed if "choices" in f.metadata} == {
        ("controller", "descriptor"): api.DESCRIPTORS,
        ("data", "name"): data.NAMES,
        ("data", "augment"): tuple(data.AUGMENTS),
        ("data", "decode"): data.DECODERS,
        ("optimiser", "kind"): optimiser.KINDS,
        ("schedule", "law"): schedule.LAWS,
        ("runtime", "device"): runtime.DEVICES,
        ("runtime", "precision"): runtime.PRECISIONS,
    }
    assert tuple(measure._MEASURES) == sets.MEASURES
    assert list(names.CONTROLLERS) == list(controllers.KINDS)
    for name, kind in names.CONTROLLERS.items():
        assert kind.reads_weights == controllers.KINDS[name].reads_weights
        assert kind.options == tuple(controllers._options_of(controllers.KINDS[name]))
        assert str(controllers.parse(kind.example or name)) == (kind.example or name)


def test_the_paper_recipes_say_what_the_paper_says():
    for name in ("cifar10", "cifar100"):
        recipe = load(f"paper/{name}")
        assert recipe.data.name == name
        assert (recipe.run.epochs, recipe.data.batch_size) == (300, 64)
        assert (recipe.schedule.law, recipe.schedule.milestones, recipe.schedule.every) == ("steps", (0.5, 0.75), None)
        assert recipe.data.augment == "crop_flip"
    imagenet = load("paper/imagenet")
    assert (imagenet.run.epochs, imagenet.data.batch_size, imagenet.schedule.every) == (100, 256, 30)
    assert (imagenet.data.augment, imagenet.data.size, imagenet.data.resize) == ("resized_crop", 224, 256)
    assert imagenet.model.original_stride
    for recipe in (load("paper/cifar10"), load("paper/cifar100"), imagenet):
        wanted = recipe.optimiser
        assert (wanted.lr, wanted.momentum, wanted.nesterov, wanted.weight_decay) == (0.1, 0.9, True, 1e-4)
        assert recipe.schedule.factor == 10
        assert recipe.schedule.warmup_epochs == 0
        assert recipe.controller.kind == "lstm"


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_survives_being_written_and_read(name):
    recipe = load(name)
    assert loads(dump(recipe), "again") == recipe


def test_every_field_has_a_sentence_and_is_listed():
    text = "\n".join(describe_fields())
    for section, settings in sections(Recipe()):
        for field, _ in settings:
            assert field.metadata["text"].endswith(".")
            assert f"{section}.{field.name} = " in text


def test_overrides():
    changes = ["run.seed=3", "model.name=cifar/resnet14", "schedule.milestones=[0.3]", "optimiser.lr=1", "run.epochs=7"]
    recipe = load("smoke/digits", [*changes, "run.epochs=8", "runtime.compile=true"])
    assert recipe.run.seed == 3
    assert recipe.model.name == "cifar/resnet14"
    assert recipe.schedule.milestones == (0.3,)
    assert recipe.optimiser.lr == 1.0
    assert recipe.run.epochs == 8
    assert recipe.runtime.compile is True
    assert [loads("", "x", [f"data.root={text}"]).data.root for text in ("2024", "true", "none")] == [
        "2024",
        "true",
        None,
    ]
    spaced = ["controller.kind = lstm ", "data.root = none", 'model.options=" a=1"']
    read = loads("", "x", spaced)
    assert (read.controller.kind, read.data.root, read.model.options) == ("lstm", None, " a=1")
    cleared = loads("[model]\nlast_norm_init = 0.5", "x.toml", ["model.last_norm_init=none"])
    assert cleared.model.last_norm_init is None
    assert loads("", "x", ["controller.kind=none", "data.augment=none"]).controller.kind == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", r"x\.toml: not valid TOML"),
        ("[modle]", r"x\.toml: modle is not known; did you mean model\? allowed are model, controller"),
        ("model = 3", r"x\.toml: model must be a table, not 3"),
        ("[optimiser]\nlearning = 1", r"x\.toml: optimiser\.learning is not known; allowed are kind, lr, momentum"),
        ("[optimiser]\nmomentun = 1", r"did you mean optimiser\.momentum\?"),
        (
            "[run]\nepochs = 1.5",
            r"run\.epochs must be a whole number, not 1\.5 \(allowed: at least 1 and",
        ),
        ("[run]\nepochs = true", r"run\.epochs must be a whole number, not True"),
        ("[run]\nepochs = 0", r"run\.epochs cannot be 0 \(allowed: at least 1 and"),
        ("[optimiser]\nlr = 'high'", r"optimiser\.lr must be a number, not 'high' \(allowed: more than 0\)"),
        ("[optimiser]\nlr = 0", r"optimiser\.lr cannot be 0\.0"),
        ("[optimiser]\nlr = inf", r"optimiser\.lr cannot be inf"),
        ("[optimiser]\nlr = nan", r"optimiser\.lr cannot be nan"),
        ("[optimiser]\nnesterov = 1", r"optimiser\.nesterov must be true or false"),
        ("[data]\nname = 'mnist'", r"data\.name cannot be 'mnist' \(allowed: one of digits, cifar10"),
        ("[data]\nname = 3", r"data\.name must be text, not 3"),
        ("[schedule]\nmilestones = 0.5", r"schedule\.milestones must be a list, not 0"),
        ("[schedule]\nmilestones = [2]", r"schedule\.milestones\[1\] cannot be 2\.0"),
        ("[schedule]\nwarmup_epochs = 20", r"schedule\.warmup_epochs 20 is more than run\.epochs 10"),
        ("[controller]\nkind = 'lstn'", r"controller\.kind cannot be 'lstn' \(allowed: one of none, lstm"),
        ("[controller]\nkind = 'none,lstm'", r"controller\.kind cannot be 'none,lstm' \(allowed: one of none, lstm"),
        ("[controller]\nkind = 'fixed'", r"controller\.kind fixed needs controller\.value"),
        ("[controller]\nkind = 'lstm'\nvalue = 1", r"controller\.value is not for controller\.kind lstm"),
        ("[run]\nseed = 9223372036854775808", r"run\.seed cannot be 9223372036854775808 \(allowed: .*at most 92233720"),
        (
            "[data]\nname = 'folder'\naugment = 'crop_flip'",
            r"x\.toml: data\.augment crop_flip is for images in memory, not folder \(allowed: one of none, resized",
        ),
        (
            "[data]\nname = 'folder'\nresize = 200",
            r"x\.toml: data\.resize cannot be 200 \(allowed: at least data\.size, 224",
        ),
        (
            "[data]\naccumulate = 3",
            r"x\.toml: data\.accumulate cannot be 3 \(allowed: what divides data\.batch_size, 64\); did you mean 4\?",
        ),
        ("[data]\naccumulate = 65", r"did you mean 64\?"),
        ("[data]\naccumulate = 0", r"data\.accumulate cannot be 0 \(allowed: at least 1\)"),
        ("[data]\naccumulate = 2.0", r"data\.accumulate must be a whole number"),
        ("[data]\nacumulate = 2", r"did you mean data\.accumulate\?"),
        (f"[data]\nbatch_size = {10**15}\naccumulate = {10**14 + 1}", r"did you mean 1000000000000000\?"),
        ("[data]\naugment = 'resized_crop'", r"data\.augment resized_crop is for image folders, not digits"),
    ],
)
def test_mistakes_name_file_key_and_what_is_allowed(text, message):
    with pytest.raises(RecipeError, match=message):
        loads(text, "x.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", r"override 'seed=1' is not of the form section\.key=value; did you mean run\.seed=1\?"),
        ("nonsense", r"for example run\.seed=1"),
        ("run.sede=1", r"override 'run\.sede=1': run\.sede is not known; did you mean run\.seed\?"),
        ("run.seed=x", r"override 'run\.seed=x': run\.seed must be a whole number, not 'x'"),
        ("run.seed=none", r"run\.seed must be a whole number, not None"),
        ("run.seed=1\nbogus=2", r"override 'run\.seed=1\\nbogus=2' has more than one line"),
        ("run.seed=1\n[bogus]", "has more than one line"),
        ("gun.seed=1", r"gun is not known; did you mean run\?"),
    ],
)
def test_mistakes_in_overrides(override, message):
    with pytest.raises(RecipeError, match=message):
        load("smoke/digits", [override])


def test_recipes_are_found_by_name_and_by_path(tmp_path, monkeypatch):
    assert find("smoke/digits") == find("smoke/digits.toml")
    assert short_name(str(find("smoke/digits"))) == "smoke/digits"
    mine = tmp_path / "mine.toml"
    mine.write_text("[run]\nseed = 5\n")
    assert load(str(mine)).run.seed == 5
    assert short_name(str(mine)) == "mine"
    monkeypatch.chdir(tmp_path)
    assert load("smoke/digits").model.name == "cifar/resnet8"
    with pytest.raises(RecipeError, match=r"no recipe 'smoke/digit'.*paper/cifar10.*smoke/digits"):
        load("smoke/digit")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"binary\.toml: cannot be read"):
        load("binary.toml")


def test_a_set_of_runs_is_no_recipe():
    with pytest.raises(RecipeError, match=r"table2\.toml is a set of runs and no recipe; .* reproduce table2 trains"):
        load("paper/table2")


def test_differences_leave_out_what_is_free_to_change():
    old = Recipe()
    new = replace(old, run=replace(old.run, seed=1, tensorboard=False), data=replace(old.data, workers=4, batch_size=8))
    assert differences(old, new) == [("data.batch_size", 64, 8), ("run.seed", 0, 1)]


@pytest.mark.parametrize("text", ["two\nlines", "tab\there", "\x7f\x01", "Größe/数据", "back\\slash"])
def test_any_string_is_written_so_that_it_can_be_read(text):
    old = Recipe()
    recipe = replace(old, data=replace(old.data, root=text))
    assert loads(dump(recipe), "again") == recipe


def test_strings_are_escaped():
    recipe = loads("", "x", [r'data.root="C:\\data \"here\""'])
    assert recipe.data.root == 'C:\\data "here"'
    assert loads(dump(recipe), "again") == recipe
    assert as_dict(recipe)["data"]["root"] == recipe.data.root
