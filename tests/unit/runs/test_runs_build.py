import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from timestepper.adapters import find_stages
from timestepper.api import detach, is_attached
from timestepper.engine.runtime import Runtime
from timestepper.errors import RecipeError
from timestepper.recipe.load import load, loads, shipped
from timestepper.runs import build
from timestepper.runs.observe import NetworkObserver
from timestepper.runs.run import Run
from timestepper.runs.start import train

SHAPES = {"digits": (10, (1, 8, 8)), "cifar10": (10, (3, 32, 32)), "cifar100": (100, (3, 32, 32))}


def images_like(recipe):
    """What a network needs to know of the data, without the data."""
    classes, shape = SHAPES.get(recipe.data.name, (1000, (3, recipe.data.size, recipe.data.size)))
    return SimpleNamespace(classes=classes, input_shape=shape)


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_recipe_is_built(name):
    recipe = load(name)
    images = images_like(recipe)
    model = build.network(recipe, images)
    model.eval()
    channels, size, _ = images.input_shape
    with torch.no_grad():
        assert model(torch.zeros(1, channels, min(size, 64), min(size, 64))).shape == (1, images.classes)
    optimiser = build.optimiser(recipe, model)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(list(model.parameters()))
    assert build.schedule(recipe, 10).rate(round(10 * recipe.schedule.warmup_epochs)) == recipe.optimiser.lr
    assert build.plan(recipe).seed == recipe.run.seed
    assert is_attached(model) is (recipe.controller.kind != "none")
    assert build.identity(recipe, images)["controller"] == recipe.controller.kind


@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("paper/")])
def test_paper_recipes_begin_with_every_block_at_work(name):
    recipe = load(name)
    model = build.network(recipe, images_like(recipe))
    for path in (path for stage in find_stages(detach(model)) for site in stage.sites for path in site.last):
        assert model.get_parameter(f"{path}.weight").unique().tolist() == [1.0]


def small(*changes):
    return loads("", "test", ["model.name=cifar/resnet8", *changes])


DIGITS = SimpleNamespace(classes=10, input_shape=(1, 8, 8))


def test_the_network_is_a_function_of_the_seed():
    first, again = build.network(small(), DIGITS), build.network(small(), DIGITS)
    other = build.network(small("run.seed=1"), DIGITS)
    assert torch.equal(first.conv1.weight, again.conv1.weight)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


def test_stepped_and_plain_networks_start_from_the_same_weights():
    plain = build.network(small(), DIGITS)
    stepped = detach(build.network(small("controller.kind=lstm"), DIGITS))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, stepped.state_dict()[name])


@pytest.mark.filterwarnings("ignore:model.last_norm_init=0")
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_last_norm_init_reaches_the_last_norm_of_every_branch_and_no_other(value):
    model = build.network(small(f"model.last_norm_init={value}"), DIGITS)
    last = {path for stage in find_stages(model) for site in stage.sites for path in site.last}
    assert len(last) == 3
    for path, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.weight.unique().tolist() == [value if path in last else 1.0]


def test_a_start_at_0_that_leaves_channels_dead_is_warned_of():
    """Only a shortcut that adds zero channels has such channels: a projection shortcut has none."""
    with pytest.warns(UserWarning, match=r"last_norm_init=0: .* never learn; start at 0\.01 or more"):
        build.network(small("model.last_norm_init=0"), DIGITS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build.network(small("model.last_norm_init=0.01"), DIGITS)
        build.network(small("model.name=timm/resnet18", "model.last_norm_init=0"), DIGITS)
        net = build.network(small("model.options=shortcut=projection", "model.last_norm_init=0"), DIGITS)
    block = net.layer2[0]
    assert (block.bn2.weight.unique().tolist(), block.downsample[1].weight.unique().tolist()) == ([0.0], [1.0])
    with pytest.raises(RecipeError, match="shortcut must be zeros or projection, not 'none'"):
        build.network(small("model.options=shortcut=none"), DIGITS)


def test_last_norm_init_needs_norms():
    recipe = small("model.name=cifar/densenet40", "model.last_norm_init=0.5")
    with pytest.raises(RecipeError, match=r"model\.last_norm_init: branches end in .*Conv2d.*; leave it out"):
        build.network(recipe, SimpleNamespace(classes=10, input_shape=(3, 32, 32)))


def test_controllers_are_a_group_of_their_own():
    recipe = small("controller.kind=independent", "controller.weight_decay=0.25")
    model = build.network(recipe, DIGITS)
    network, controllers = build.optimiser(recipe, model).param_groups
    assert (network["name"], network["weight_decay"]) == ("network", 1e-4)
    assert (controllers["name"], controllers["weight_decay"]) == ("controllers", 0.25)
    assert {id(p) for p in controllers["params"]} == {id(p) for p in model.controllers.parameters()}


def test_adamw_decays_matrices_alone():
    recipe = small("controller.kind=independent", "optimiser.kind=adamw", "optimiser.weight_decay=0.05")
    model = build.network(recipe, DIGITS)
    built = build.optimiser(recipe, model)
    assert isinstance(built, torch.optim.AdamW)
    decays = {group["name"]: group["weight_decay"] for group in built.param_groups}
    assert decays == {"network": 0.05, "vectors": 0.0, "controllers": 0.05}
    assert {p.dim() for p in built.param_groups[1]["params"]} == {1}
    assert min(p.dim() for p in built.param_groups[0]["params"]) == 2


def test_a_controller_that_wants_no_decay_has_none_unless_it_is_asked_for():
    for changes, wanted in (((), 0.0), (("controller.weight_decay=0.25",), 0.25)):
        recipe = small("controller.kind=gain", *changes)
        groups = build.optimiser(recipe, build.network(recipe, DIGITS)).param_groups
        assert [group["weight_decay"] for group in groups] == [1e-4, wanted]


def test_model_options_arrive_and_mistakes_are_named():
    images = SimpleNamespace(classes=10, input_shape=(3, 32, 32))
    vit = "img_size=32 patch_size=8 embed_dim=16 depth=2 num_heads=2 qkv_bias=False"
    net = build.network(small("model.name=timm/vit_tiny_patch16_224", f"model.options={vit}"), images)
    assert (len(net.blocks), net.patch_embed.num_patches, net.blocks[0].attn.qkv.bias) == (2, 16, None)
    fixup = build.network(small("model.name=cifar/nf_resnet8", "model.start=fixup"), images)
    assert not fixup.layer1[0].conv2.weight.any()
    for options, message in (
        ("depths=3", r"does not take model\.start or model\.options as they are: .*depths"),
        ("start=nowhere", "start must be he or fixup"),
        ("start", r"model\.options: 'start' is not of the form name=value"),
        ("start={[]:1}", "start must be he or fixup"),
        (f"start={'-' * 5000}1", "start must be he or fixup"),
    ):
        with pytest.raises(RecipeError, match=message):
            build.network(small("model.name=cifar/nf_resnet8", f"model.options={options}"), images)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        *((name, "a network starts from its seed") for name in ("pretrained", "pretrained_cfg", "checkpoint_path")),
        *((name, "the data decides it") for name in ("num_classes", "in_chans")),
        ("cache_dir", "a network starts from its seed"),
        ("features_only", "it takes the classifier away"),
    ],
)
def test_model_options_that_load_files_or_are_the_data_s_are_refused(option, told, monkeypatch):
    monkeypatch.setattr("timm.create_model", lambda *_, **__: pytest.fail("timm was asked"))
    with pytest.raises(RecipeError, match=rf"model\.options cannot hold {option}: {told}.*; leave it out"):
        build.network(small("model.name=timm/resnet10t", f"model.options={option}=1"), DIGITS)


def test_a_layer_that_timm_does_not_know_is_named():
    changes = ("model.name=timm/resnet10t", "model.options=act_layer=os.system")
    with pytest.raises(RecipeError, match=r"does not take .*model\.options as they are: 'os\.system'"):
        build.network(small(*changes), SimpleNamespace(classes=10, input_shape=(3, 32, 32)))


def test_controller_options_arrive():
    changes = ("controller.kind=lstm", "controller.reduction=2", "controller.descriptor_gradient=false")
    narrow, wide = build.network(small(*changes), DIGITS), build.network(small("controller.kind=lstm"), DIGITS)
    count = [sum(p.numel() for p in net.controllers.parameters()) for net in (narrow, wide)]
    assert count[0] > count[1]
    fixed = small("controller.kind=fixed", "controller.value=0.01")
    assert build.controller_name(fixed) == "fixed(0.01)"
    assert list(build.network(fixed, DIGITS).controllers.parameters()) == []


def test_identity_tells_apart_what_does_not_fit():
    changes = (
        ["model.name=cifar/resnet14"],
        ["controller.kind=lstm"],
        ["model.original_stride=true"],
        ["model.options=width=8"],
        ["controller.kind=lstm", "controller.reduction=2"],
    )
    found = {str(build.identity(small(*change), DIGITS)) for change in changes}
    found |= {
        str(build.identity(small(), images)) for images in (DIGITS, SimpleNamespace(classes=9, input_shape=(1, 8, 8)))
    }
    assert len(found) == 7


def test_observation_reports_step_sizes():
    recipe = small("controller.kind=fixed", "controller.value=0.25")
    seen = NetworkObserver(build.network(recipe, DIGITS), (1, 8, 8), recipe.run.monitor).look()
    assert seen.scalars["step_size/layer1"] == pytest.approx(0.25)
    assert seen.scalars["evolution_time/layer3"] == pytest.approx(0.25)
    assert seen.profiles["step_sizes/layer2"] == pytest.approx([0.25])
    assert seen.columns == pytest.approx({"dt layer1": 0.25, "dt layer2": 0.25, "dt layer3": 0.25})
    plain = NetworkObserver(build.network(small(), DIGITS), (1, 8, 8), small().run.monitor).look()
    assert (plain.scalars, plain.profiles, plain.columns) == ({}, {}, {})


@pytest.mark.parametrize("kind", ["none", "lstm"])
def test_the_monitor_adds_the_bound_to_what_is_seen(kind):
    recipe = small(f"controller.kind={kind}", "run.monitor=true")
    seen = NetworkObserver(build.network(recipe, DIGITS), (1, 8, 8), recipe.run.monitor).look()
    stages = ("layer1", "layer2", "layer3")
    assert seen.scalars["log_bound"] == pytest.approx(sum(seen.scalars[f"log_bound/{stage}"] for stage in stages))
    assert seen.scalars["log_bound"] > 0
    assert ("step_size/layer1" in seen.scalars) == (kind == "lstm")


def test_sync_bn_needs_gpus(tmp_path):
    with pytest.raises(RecipeError, match=r"runtime\.sync_bn needs GPUs"):
        train(Run(small("runtime.sync_bn=true", "runtime.device=cpu"), "x", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_loaders_have_the_shapes_of_the_recipe():
    recipe = small("data.batch_size=32", "data.test_batch_size=100", "data.augment=shift")
    data = build.dataset(recipe)
    parts = (Runtime(torch.device("cpu")), build.Group())
    images, labels = next(iter(build.train_loader(recipe, data.train, *parts).epoch(0)))
    assert images.shape == (32, 1, 8, 8)
    assert labels.shape == (32,)
    test = build.test_loader(recipe, data.test, *parts)
    assert sum((labels >= 0).sum().item() for _, labels in test.epoch(0)) == test.samples == 360


@pytest.mark.parametrize("world", [1, 3, 8])
def test_any_number_of_processes_shares_the_test_images(world):
    recipe = load("smoke/digits")
    images = build.dataset(recipe).test
    counts = set()
    seen = 0
    for rank in range(world):
        loader = build.test_loader(recipe, images, Runtime(torch.device("cpu")), build.Group(rank, world))
        batches = list(loader.epoch(0))
        counts.add(len(batches))
        seen += sum((labels >= 0).sum().item() for _, labels in batches)
    assert seen == 360
    assert len(counts) == 1


@pytest.mark.parametrize(
    ("change", "world", "message"),
    [
        ("data.batch_size=5000", 1, r"data\.batch_size cannot be 5000 \(allowed: at most 1437"),
        (
            "data.batch_size=64",
            3,
            r"data\.batch_size 64 cannot be shared equally by 3 processes; choose a multiple of 3",
        ),
        (
            "data.accumulate=32",
            4,
            r"64 cannot be .* by 4 processes, in 32 parts each \(data\.accumulate\); choose a multiple of 128",
        ),
    ],
)
def test_an_impossible_batch_names_its_key(change, world, message):
    recipe = small(change)
    with pytest.raises(RecipeError, match=message):
        build.train_loader(recipe, build.dataset(recipe).train, Runtime(torch.device("cpu")), build.Group(world=world))


@pytest.mark.parametrize("name", ["cifar/resnet9", "timm/nope", "resnet50"])
def test_an_unknown_network_names_its_key(name):
    with pytest.raises(RecipeError, match=rf"model\.name cannot be '{name}': "):
        build.network(small(f"model.name={name}"), DIGITS)
