"""What a recipe may say: every section, every field, its meaning, its default and its limits."""

from dataclasses import dataclass
from typing import Any

from timestepper import names
from timestepper.engine.schedule import LAWS
from timestepper.validate import limited


def setting(default: Any, text: str, *, free: bool = False, **limits: Any) -> Any:
    """A field of a recipe. ``free`` fields do not change what is learned, so a resumed run may change them."""
    return limited(default, text=text, free=free, **limits)


@dataclass(frozen=True)
class ModelSettings:
    """The network."""

    name: str = setting("cifar/resnet20", "LIBRARY/MODEL: cifar/resnet56, timm/resnet50, torchvision/resnet18.")
    original_stride: bool = setting(False, "Stride in the first 1x1 convolution of a bottleneck, as in the paper.")
    start: str | None = setting(
        None, "How its weights start, where there is a choice: he or fixup (cifar/nf_resnet56)."
    )
    options: str = setting("", "More options of its constructor, such as img_size=32 patch_size=4.")
    last_norm_init: float | None = setting(None, "Initial weight of the last batch norm of each branch.", least=0)


@dataclass(frozen=True)
class ControllerSettings:
    """Where the step sizes come from."""

    kind: str = setting("none", f"Controller: {names.known()}, or your own; none trains the plain network.")
    value: float | None = setting(
        None, "The number of a kind such as fixed, if controller.kind does not hold it.", least=0
    )
    module: str | None = setting(None, "Python module that registers the kind; it is imported first.")
    start: str = setting("paper", "Where step sizes begin: paper (about one half), identity (one), or a number.")
    reduction: int | None = setting(None, "The paper's r; absent: 4 for basic blocks, 8 for bottlenecks.", least=1)
    descriptor: str = setting(
        "mean",
        "How the controller is shown the weights: the paper's mean, or normalised with its scale (visible).",
        choices=("mean", "visible"),
    )
    descriptor_gradient: bool = setting(True, "Whether a step size's gradient reaches the weights that it reads.")
    weight_decay: float | None = setting(None, "Weight decay of the controllers; absent: the optimiser's.", least=0)


@dataclass(frozen=True)
class DataSettings:
    """The images."""

    name: str = setting("digits", "Data set.", choices=("digits", "cifar10", "cifar100", "imagenet", "folder"))
    root: str | None = setting(None, "Folder of the data set; absent: the usual places.", free=True)
    download: bool = setting(False, "Fetch CIFAR where it is missing.", free=True)
    augment: str = setting(
        "none",
        "Variation of training images: shift for digits, crop_flip for CIFAR, resized_crop for ImageNet.",
        choices=("none", "shift", "crop_flip", "resized_crop"),
    )
    batch_size: int = setting(64, "Images per update, over all processes together.", least=1)
    accumulate: int = setting(
        1, "Parts of a batch that a process puts through the network one after the other, to need less memory.", least=1
    )
    test_batch_size: int = setting(500, "Images per evaluated batch, over all processes together.", least=1, free=True)
    size: int = setting(224, "Edge of the square input of image folders, in pixels.", least=8)
    resize: int | None = setting(None, "Shorter side before the centre crop of image folders.", least=8)
    workers: int = setting(
        0, "Processes that decode image files, or read them for the GPU.", least=0, most=256, free=True
    )
    decode: str = setting(
        "cpu",
        "What decodes image files: cpu, gpu, or auto, the GPU where it can and most files are JPEGs.",
        choices=("cpu", "gpu", "auto"),
        free=True,
    )


@dataclass(frozen=True)
class OptimiserSettings:
    """What is minimised, and how."""

    kind: str = setting("sgd", "Stochastic gradient descent, or AdamW.", choices=("sgd", "adamw"))
    lr: float = setting(0.1, "Learning rate at the start.", above=0)
    momentum: float = setting(0.9, "Momentum; the first beta of adamw.", least=0, most=0.999)
    nesterov: bool = setting(True, "Nesterov's form of momentum (sgd).")
    beta2: float = setting(0.999, "The second beta of adamw.", least=0, most=0.99999)
    weight_decay: float = setting(
        1e-4,
        "Weight decay: on every parameter (sgd), or on those of two dimensions and more and of controllers (adamw).",
        least=0,
    )
    label_smoothing: float = setting(0.0, "Part of a label that is spread over all classes.", least=0, most=0.9)


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate over time."""

    law: str = setting("steps", "How the learning rate falls.", choices=LAWS)
    milestones: tuple[float, ...] = setting(
        (0.5, 0.75), "Fractions of the run at which the learning rate is divided (law steps).", least=0, most=1
    )
    every: int | None = setting(
        None, "Divide the learning rate every so many epochs, instead of milestones (law steps).", least=1
    )
    factor: float = setting(10.0, "By how much the learning rate is divided.", least=1)
    warmup_epochs: float = setting(0.0, "Epochs of linear warm-up at the start.", least=0)


@dataclass(frozen=True)
class RuntimeSettings:
    """How it is computed."""

    device: str = setting(
        "auto", "Where to run; auto takes a GPU where there is one.", choices=("auto", "cpu", "cuda"), free=True
    )
    precision: str = setting("float32", "Arithmetic of the network.", choices=("float32", "tf32", "bf16"))
    compile: bool = setting(False, "Use torch.compile.", free=True)
    cuda_graph: bool = setting(False, "Run the whole update as one CUDA graph.", free=True)
    channels_last: bool = setting(False, "Channels-last memory layout.", free=True)
    fast_convolutions: bool = setting(
        False, "Own kernels for 3x3 convolutions of at most 64 channels (GPU, bf16, channels-last).", free=True
    )
    deterministic: bool = setting(False, "Use deterministic kernels only: slower, and not needed on a CPU.")
    sync_bn: bool = setting(False, "Batch-norm statistics over all processes (GPUs only).")


@dataclass(frozen=True)
class RunSettings:
    """The course of the run."""

    seed: int = setting(0, "Seed of everything random.", least=0, most=2**63 - 1)
    epochs: int = setting(10, "Passes over the training images.", least=1, most=10**6)
    log_steps: int = setting(50, "Updates per line of metrics.jsonl.", least=1)
    evaluate_epochs: int = setting(1, "Epochs between evaluations; the last epoch is always evaluated.", least=1)
    checkpoint_steps: int = setting(0, "Updates between checkpoints; 0: not by updates.", least=0, free=True)
    checkpoint_epochs: int = setting(1, "Epochs between checkpoints; 0: only at the end.", least=0, free=True)
    checkpoint_seconds: float = setting(0.0, "Seconds between checkpoints; 0: not by the clock.", least=0, free=True)
    tensorboard: bool = setting(True, "Write TensorBoard files.", free=True)
    monitor: bool = setting(False, "Log an estimate of the stability bound after every epoch.", free=True)


@dataclass(frozen=True)
class Recipe:
    """What to train and how."""

    model: ModelSettings = ModelSettings()
    controller: ControllerSettings = ControllerSettings()
    data: DataSettings = DataSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    runtime: RuntimeSettings = RuntimeSettings()
    run: RunSettings = RunSettings()
