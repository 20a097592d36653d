"""A recipe made real: data, network, optimiser, schedule. The one place where method and engine meet."""

import ast
import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import torch
from torch import nn

from timestepper import data, names
from timestepper.api import attach
from timestepper.controllers import parse
from timestepper.engine import optimiser as optimisers
from timestepper.engine.distributed import Group
from timestepper.engine.loop import TrainingPlan
from timestepper.engine.runtime import Runtime
from timestepper.engine.schedule import Schedule
from timestepper.errors import RecipeError, UnknownNameError, first_line, in_words, lacks_memory
from timestepper.recipe.schema import ModelSettings, Recipe
from timestepper.sites import create_model, find_stages
from timestepper.sites.twin import left_alone

T = TypeVar("T")
_FROM_SEED = "a network starts from its seed, and nothing is downloaded or loaded into it"
_FROM_DATA = "the data decides it"
_NOT_OPTIONS = {  # what timm would take, by how the name begins: why not
    **dict.fromkeys(("pretrained", "checkpoint_path", "cache_dir"), _FROM_SEED),
    **dict.fromkeys(("num_classes", "in_chans"), _FROM_DATA),
    "features_only": "it takes the classifier away",
}


def dataset(recipe: Recipe) -> data.Dataset:
    """The data set, verified."""
    wanted = recipe.data
    return data.open_dataset(wanted.name, wanted.root, download=wanted.download, size=wanted.size, resize=wanted.resize)


def train_loader(recipe: Recipe, images: Any, runtime: Runtime, group: Group) -> data.Loader:
    """Shuffled, augmented batches."""
    wanted = recipe.data
    if wanted.batch_size > len(images):
        raise RecipeError(
            f"data.batch_size cannot be {wanted.batch_size} (allowed: at most {len(images)}, the training images of "
            f"{wanted.name})"
        )
    parts = group.world * wanted.accumulate
    if wanted.batch_size % parts:
        each = f", in {wanted.accumulate} parts each (data.accumulate)" if wanted.accumulate > 1 else ""
        raise RecipeError(
            f"data.batch_size {wanted.batch_size} cannot be shared equally by {group.world} processes{each}; choose a "
            f"multiple of {parts} or another number of processes"
        )
    return _loader(recipe, images, runtime, group, batch_size=wanted.batch_size, augment=wanted.augment, training=True)


def test_loader(recipe: Recipe, images: Any, runtime: Runtime, group: Group) -> data.Loader:
    """Every image once, in order, in batches of one size that all processes can share."""
    each = math.ceil(recipe.data.test_batch_size / group.world)
    if recipe.data.decode == "gpu" and runtime.device.type != "cuda":  # what GPUs have trained is evaluated anywhere
        runtime.tell_once("data.decode=gpu, but there is no GPU: images are decoded on the CPU")
        recipe = replace(recipe, data=replace(recipe.data, decode="cpu"))
    return _loader(recipe, images, runtime, group, batch_size=each * group.world, training=False)


def _loader(recipe: Recipe, images: Any, runtime: Runtime, group: Group, **options: Any) -> data.Loader:
    return data.loader(
        images,
        seed=recipe.run.seed,
        rank=group.rank,
        world=group.world,
        device=runtime.device,
        workers=recipe.data.workers,
        decode=recipe.data.decode,
        memory_format=torch.channels_last if runtime.channels_last else torch.contiguous_format,
        **options,
    )


@torch.no_grad()
def check_images(recipe: Recipe, model: nn.Module, batches: data.Loader) -> None:
    """Refuse images that the network does not take, and parts of a batch that batch norms can make nothing of."""
    images = torch.zeros(2, *batches.input_shape, device=batches.device)
    twin = copy.deepcopy(model)
    try:
        with left_alone():
            twin.eval()(images)
    except (AssertionError, ValueError, TypeError, RuntimeError) as error:
        if lacks_memory(error) or isinstance(error, torch.AcceleratorError):
            raise
        raise RecipeError(
            f"{recipe.model.name} does not run on the images of {recipe.data.name}, {tuple(images.shape[1:])} "
            f"({in_words(error)}); choose other data or another network, or build it for that size (model.options, "
            "where its constructor takes one)"
        ) from error
    if batches.local_batch > recipe.data.accumulate:
        return
    try:  # one image that has become one pixel has no variance
        twin.train()(images[:1])
    except ValueError as error:
        raise RecipeError(
            f"{recipe.model.name} cannot be trained on one image at a time ({first_line(error)}): data.batch_size "
            f"{recipe.data.batch_size} is too small for data.accumulate={recipe.data.accumulate} and the number of "
            "processes; use a larger batch or fewer parts"
        ) from error


def network(recipe: Recipe, images: Any, sync_bn: bool = False) -> nn.Module:
    """The network with its controllers, freshly initialised from the recipe's seed, on the CPU."""
    options = _options(recipe.model)
    torch.manual_seed(recipe.run.seed)
    try:
        model = create_model(
            recipe.model.name,
            num_classes=images.classes,
            in_chans=images.input_shape[0],
            original_stride=recipe.model.original_stride,
            **options,
        )
    except UnknownNameError as error:
        raise RecipeError(f"model.name cannot be {recipe.model.name!r}: {error}") from error
    except (TypeError, ValueError, AssertionError, LookupError) as error:
        if not (recipe.model.options or recipe.model.start):
            raise
        raise RecipeError(
            f"{recipe.model.name} does not take model.start or model.options as they are: {first_line(error)}"
        ) from error
    if recipe.model.last_norm_init is not None:
        _fill_last_norms(model, recipe.model.last_norm_init)
        padded = recipe.model.name.startswith("cifar/resnet") and options.get("shortcut") != "projection"
        if recipe.model.last_norm_init == 0 and padded:
            warnings.warn(
                "model.last_norm_init=0: the channels that a zero-padded shortcut adds start at 0 behind a ReLU and "
                "never learn; start at 0.01 or more, or set model.options to shortcut=projection",
                stacklevel=2,
            )
    if sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if recipe.controller.kind == "none":
        return model
    return attach(
        model,
        controller_name(recipe),
        start=start if (start := recipe.controller.start) in names.STARTS else float(start),
        reduction=recipe.controller.reduction,
        descriptor=recipe.controller.descriptor,
        descriptor_gradient=recipe.controller.descriptor_gradient,
    )


def _options(model: ModelSettings) -> dict[str, Any]:
    """``img_size=32 init_values=1e-4 class_token=False``: numbers, truth values and tuples as Python writes them."""
    found: dict[str, Any] = {} if model.start is None else {"start": model.start}
    for part in model.options.split():
        name, equals, value = part.partition("=")
        if not equals or not name.isidentifier():
            raise RecipeError(f"model.options: {part!r} is not of the form name=value, for example img_size=32")
        for start, why in _NOT_OPTIONS.items():
            if name.startswith(start):
                raise RecipeError(f"model.options cannot hold {name}: {why}; leave it out")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            found[name] = value
    return found


def _fill_last_norms(model: nn.Module, value: float) -> None:
    for stage in find_stages(model):
        for path in (path for site in stage.sites for path in site.last):
            layer = model.get_submodule(path)
            if not isinstance(layer, nn.modules.batchnorm._BatchNorm):
                raise RecipeError(
                    f"model.last_norm_init: branches end in {path}, a {type(layer).__name__}, no batch norm; "
                    "leave it out"
                )
            nn.init.constant_(layer.weight, value)


def controller_name(recipe: Recipe) -> str:
    """The controller as ``attach`` takes it, ``none`` for a plain network."""
    kind, value = recipe.controller.kind, recipe.controller.value
    return kind if kind == "none" else str(parse(kind if value is None else f"{kind}({value!r})"))


def identity(recipe: Recipe, images: Any) -> dict[str, Any]:
    """What a checkpoint must agree in before any of it is loaded."""
    told = {
        "model": recipe.model.name,
        "classes": images.classes,
        "channels": images.input_shape[0],
        "original_stride": recipe.model.original_stride or None,
        "options": recipe.model.options or None,
        "controller": controller_name(recipe),
        "start": start if (start := recipe.controller.start) != "paper" else None,
        "reduction": recipe.controller.reduction,
    }
    return {name: value for name, value in told.items() if value is not None}


def optimiser(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Groups of what is decayed alike: the network, with AdamW its biases and norms, and the controllers."""
    wanted, decay = recipe.optimiser, recipe.controller.weight_decay
    if decay is None:
        never = recipe.controller.kind != "none" and not parse(controller_name(recipe)).controller.decays
        decay = 0.0 if never else wanted.weight_decay
    members: dict[str, list[nn.Parameter]] = {"network": [], "vectors": [], "controllers": []}
    for name, parameter in model.named_parameters():
        vector = wanted.kind == "adamw" and parameter.dim() < 2
        members["controllers" if name.startswith("controllers.") else "vectors" if vector else "network"] += [parameter]
    decays = {"network": wanted.weight_decay, "vectors": 0.0, "controllers": decay}
    groups = [{"name": name, "params": members[name], "weight_decay": decays[name]} for name in members]
    return optimisers.build(
        groups, **{name: value for name, value in asdict(wanted).items() if name != "label_smoothing"}
    )


def schedule(recipe: Recipe, steps_per_epoch: int) -> Schedule:
    """The learning rate of every step."""
    whole = {"lr": recipe.optimiser.lr, "epochs": recipe.run.epochs, "steps_per_epoch": steps_per_epoch}
    return _made(Schedule, recipe.schedule, **whole)


def plan(recipe: Recipe) -> TrainingPlan:
    """What to minimise; when to log, evaluate and save."""
    loss = {"label_smoothing": recipe.optimiser.label_smoothing, "accumulate": recipe.data.accumulate}
    return _made(TrainingPlan, recipe.run, **loss)


def runtime(recipe: Recipe, device: torch.device, tell: Callable[[str], None]) -> Runtime:
    """How to compute, with torch set up for it."""
    built = _made(Runtime, recipe.runtime, device=device, tell=tell)
    built.configure()
    return built


def _made(kind: type[T], section: Any, **more: Any) -> T:
    """A part of the engine; what it shares with a section of the recipe has the same name in both."""
    shared = {f.name for f in fields(kind)} & asdict(section).keys() - more.keys()  # type: ignore[arg-type]
    return kind(**{name: getattr(section, name) for name in shared}, **more)
