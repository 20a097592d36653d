"""Where and how a model runs: device, precision, memory layout, compilation, CUDA graphs."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from timestepper.engine.graph import Graphed
from timestepper.errors import RecipeError, UnknownNameError, first_line
from timestepper.terminal import tell

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("float32", "tf32", "bf16")
_NETWORKS = 128


@dataclass(frozen=True)
class Runtime:
    """How to run a model. ``tell`` receives one line for each thing that was asked for and is not possible."""

    device: torch.device
    precision: str = "float32"
    compile: bool = False
    cuda_graph: bool = False
    channels_last: bool = False
    deterministic: bool = False
    fast_convolutions: bool = False
    tell: Callable[[str], None] = tell
    _told: set[str] = field(default_factory=set, repr=False, compare=False)

    def tell_once(self, line: str) -> None:
        """Say a line once: update and evaluation fall back for the same reason."""
        if line not in self._told:
            self._told.add(line)
            self.tell(line)

    @property
    def kept(self) -> tuple[str, bool]:
        """What torch keeps for the whole process, and runs of one process may differ in."""
        return self.precision, self.deterministic

    def configure(self) -> None:
        """Set what torch keeps per process: TF32, benchmarking and determinism."""
        fast = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = fast
        torch.backends.cudnn.allow_tf32 = fast
        torch.backends.cudnn.benchmark = not self.deterministic
        if self.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(self.deterministic)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device.index or 0)

    def reseed(self, seed: int) -> None:
        """Seed the generators that a step can use; torch.manual_seed formats a stack trace where CUDA is asleep."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to the device and layout; compile it in place, which keeps its state-dict keys clean."""
        model.to(self.device)
        if self.channels_last:
            model.to(memory_format=torch.channels_last)
        if self.fast_convolutions:
            self._speed_up(model)
        if self.compile:
            # One process may compile many networks; beyond its limit torch.compile silently stops compiling.
            torch._dynamo.config.recompile_limit = max(_NETWORKS, torch._dynamo.config.recompile_limit)
            model.compile(dynamic=False)  # else a second batch size makes all later graphs slower and different
        return model

    def _speed_up(self, model: nn.Module) -> None:
        """Our kernels for the model's small convolutions, where they can run."""
        from timestepper.kernels import convolution, ops

        obstacles = {
            "there is no CUDA device": self.device.type != "cuda",
            f"the precision is {self.precision}, not bf16": self.precision != "bf16",
            "the layout is not channels-last": not self.channels_last,
            "Triton is not installed": not ops.TRITON,
        }
        reason = next((text for text, present in obstacles.items() if present), "")
        if not reason and not convolution.speed_up(model):
            reason = f"no layer has 3x3 filters, stride 1 and at most {convolution.WIDEST} channels, a multiple of 16"
        if reason:
            self.tell_once(f"no fast convolutions: {reason}; PyTorch's convolutions are used")

    def autocast(self) -> contextlib.AbstractContextManager:
        """The precision of a forward pass."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def call(self, model: nn.Module, inner: nn.Module, images: Tensor) -> Tensor:
        """The model's logits; ``inner`` is the compiled part of it. A compiler that fails is told of and left out."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        if inner._compiled_call_impl is None:
            return model(images)
        from torch._dynamo.exc import TorchDynamoException

        try:
            return model(images)
        except TorchDynamoException as error:
            self.tell_once(f"not compiled: {type(error).__name__}: {first_line(error)}; going on without torch.compile")
            inner._compiled_call_impl = None
            return model(images)

    def graphed(self, function: Callable[..., Tensor], distributed: bool = False) -> Callable[..., Tensor]:
        """The function through a CUDA graph where that was asked for and is possible, else the function itself."""
        if not self.cuda_graph:
            return function
        reason = "there is no CUDA device" if self.device.type != "cuda" else "several processes" if distributed else ""
        if reason:
            self.tell_once(f"no CUDA graph: {reason}; running step by step")
            return function
        return Graphed(function, self.tell_once)


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """``auto`` takes this process's GPU where there is one."""
    if name not in DEVICES:
        raise UnknownNameError(f"no device is called {name!r}; there are {', '.join(DEVICES)}")
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RecipeError(
            "the device is cuda, and torch sees no CUDA device; choose cpu or auto (runtime.device in a recipe, "
            "--device where a command has it)"
        )
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise RecipeError(f"process {local_rank} of this machine has no GPU: {count} present; start fewer processes")
    return torch.device("cuda", local_rank)


def device_name(device: torch.device) -> str:
    """The card, or the CPU and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"
