"""Step sizes into parameters: the whole method is one function from trained to effective parameters.

the branch ends in                       parameters that the branch runs with
a norm (weight a, bias b)                a*dt, b*dt: batch norm, also frozen; layer, group and RMS norm
... that computes with 1 + w (Gemma)     w*dt + (dt - 1)
... then a squeeze-excite gate           and the gate's first layer's input columns divided by dt: pooling is linear, so
                                         the gate sees what it saw
convolution, linear layer                output rows W[c]*dt[c], bias*dt; columns where the weight is stored transposed
a convolution with standardised weights  its gain: standardising cancels the scale of a row
a learned per-channel scale              the scale itself
a concatenation                          each part its piece of dt
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from timestepper.controllers.base import at_least_float32, in_transform, is_sharded
from timestepper.errors import MismatchError, UnsupportedSiteError, WrappedModelError

# Bytes. New tensors begin at a multiple of these, and pieces of a stack may not; in which order a matrix product adds
# up depends on it.
_ALIGNED = 256
USE_FSDP2 = "use FSDP2 (torch.distributed.fsdp.fully_shard; accelerate: fsdp_version 2)"


class Entry(NamedTuple):
    """One parameter that a step size enters: along one dimension it is multiplied, or divided."""

    layer: str
    name: str
    dimension: int = 0
    divide: bool = False
    offset: float = 0.0  # the layer computes with offset + parameter
    begin: int = 0  # the first step size that enters, and how many do; None: all
    length: int | None = None
    row: int = 0  # where along the dimension they begin; what lies around them stays as it is

    @property
    def parameter(self) -> str:
        return f"{self.layer}.{self.name}"

    @property
    def plain(self) -> bool:
        """Every number times its step size, and nothing else."""
        return not (self.divide or self.offset or self.dimension) and self.length is None

    def apply(self, parameter: Tensor, step_size: Tensor) -> Tensor:
        """In float32 or better, cast once; so attached and folded networks hold the same bits."""
        precise = at_least_float32(parameter)
        shape = [1] * parameter.dim()
        shape[self.dimension] = -1
        factor = self._factor(parameter.shape[self.dimension], step_size).reshape(shape)
        scaled = precise / factor if self.divide else precise * factor
        if self.offset:
            scaled = scaled + self.offset * (factor - 1)  # nothing at all where the step size is one
        return scaled.to(parameter.dtype)

    def _factor(self, size: int, step_size: Tensor) -> Tensor:
        if self.length is None:
            return step_size
        piece = step_size[self.begin : self.begin + self.length]
        around = self.row, size - self.row - self.length
        return torch.cat([piece.new_ones(around[0]), piece, piece.new_ones(around[1])]) if any(around) else piece


# Layers that are linear per output channel, by their own name and no other: a subclass may hide an activation.
_BATCH_NORMS = (
    "torch.nn.modules.batchnorm.BatchNorm1d",
    "torch.nn.modules.batchnorm.BatchNorm2d",
    "torch.nn.modules.batchnorm.BatchNorm3d",
    "torch.nn.modules.batchnorm.SyncBatchNorm",
    "torchvision.ops.misc.FrozenBatchNorm2d",
)
_NORMS = (
    *_BATCH_NORMS,
    "torch.nn.modules.normalization.GroupNorm",
    "torch.nn.modules.normalization.LayerNorm",
    "torch.nn.modules.normalization.RMSNorm",
    "timm.layers.norm.GroupNorm",
    "timm.layers.norm.LayerNorm",
    "timm.layers.norm.LayerNorm2d",
    "timm.layers.norm.RmsNorm",
)
_ACTIVE_NORMS = (
    "timm.layers.norm_act.BatchNormAct2d",
    "timm.layers.norm_act.FrozenBatchNormAct2d",
    "timm.layers.norm_act.SyncBatchNormAct",
)
_MATRICES = (
    "torch.nn.modules.conv.Conv1d",
    "torch.nn.modules.conv.Conv2d",
    "torch.nn.modules.conv.Conv3d",
    "torch.nn.modules.linear.Linear",
)
# Where the step size enters otherwise than along the first dimension of weight and bias.
_OTHERS = {
    "timm.layers.layer_scale.LayerScale": (Entry("", "gamma"),),
    "timm.layers.layer_scale.LayerScale2d": (Entry("", "gamma"),),
    "timm.layers.std_conv.ScaledStdConv2d": (Entry("", "gain"), Entry("", "bias")),
    "timm.layers.std_conv.ScaledStdConv2dSame": (Entry("", "gain"), Entry("", "bias")),
    "transformers.pytorch_utils.Conv1D": (Entry("", "weight", dimension=1), Entry("", "bias")),
}
SUPPORTED = _NORMS + _ACTIVE_NORMS + _MATRICES + tuple(_OTHERS)


def entries(model: nn.Module, last: tuple[str, ...], gate: str | None) -> tuple[Entry, ...]:
    """The parameters that the step size of one site enters; fails loudly for a layer that the table does not hold."""
    found = []
    for path in last:
        layer = model.get_submodule(path)
        if not absorbs(layer):
            raise UnsupportedSiteError(_unsupported(path, layer, "the branch ends in", SUPPORTED))
        found += [e._replace(layer=path) for e in _entering(layer) if trained(layer, e.name) is not None]
    if gate is not None:
        layer = model.get_submodule(gate)
        regular = type_name(layer) in _MATRICES and getattr(layer, "groups", 1) == 1
        if not regular or trained(layer, "weight") is None:
            raise UnsupportedSiteError(_unsupported(gate, layer, "the gate starts with", _MATRICES))
        found.append(Entry(gate, "weight", dimension=1, divide=True))
    return tuple(found)


def absorbs(layer: nn.Module) -> bool:
    """Whether a step size can enter the layer's own parameters."""
    kind = type_name(layer)
    if kind in _ACTIVE_NORMS and not all(isinstance(part, nn.Identity) for part in layer.children()):
        return False  # an activation follows
    return kind in SUPPORTED and trained(layer, _entering(layer)[0].name) is not None


def _entering(layer: nn.Module) -> tuple[Entry, ...]:
    return _OTHERS.get(type_name(layer), (Entry("", "weight"), Entry("", "bias")))


def is_norm(layer: nn.Module) -> bool:
    """By its name, because every library has its own; standardised weights do as much."""
    return re.search("(Batch|Layer|Group|Instance|RMS|Rms)Norm|StdConv", type(layer).__name__) is not None


def replaces(layer: nn.Module, other: nn.Module) -> bool:
    """Whether one batch norm may have taken the place of another: synchronised or frozen, with the same channels."""
    ours, theirs = trained(layer, "weight"), trained(other, "weight")
    kinds = {type_name(layer), type_name(other)}
    norms = kinds <= set(_BATCH_NORMS) or (kinds <= set(_ACTIVE_NORMS) and absorbs(layer))
    return norms and ours is not None and theirs is not None and ours.shape == theirs.shape


def trained(layer: nn.Module, name: str) -> Tensor | None:
    """A parameter as it is trained and saved; a frozen batch norm keeps it in a buffer."""
    found = layer._parameters.get(name)
    return layer._buffers.get(name) if found is None else found


def entered(layer: nn.Module, entry: Entry) -> Tensor:
    """The trained parameter of a layer that a step size enters, which may have been taken away since attach."""
    raw = trained(layer, entry.name)
    if raw is None:
        done = "was set to None" if entry.name in layer._parameters else "is computed from other parameters"
        raise UnsupportedSiteError(
            f"{entry.parameter} {done} since attach (pruned, normalised), which removes its step size; change "
            "timestepper.fold(net) instead"
        )
    return raw


def refuse_split(parameter: str, tensor: Tensor) -> None:
    """Refuse tensor parallelism. FSDP2 gathers a parameter before anything is computed with it."""
    if is_sharded(tensor):
        raise WrappedModelError(
            f"{parameter} is split over several processes where it is computed with (tensor parallelism); split only "
            "layers that take no step size (attach's exclude=), after attach, or use FSDP2"
        )


def refuse_computed(path: str, layer: nn.Module) -> None:
    """A weight that a hook computes in every call is, until then, the last call's, whose graph is used up.

    One that is not trained stays the same, and may stay.
    """
    weight, trains = vars(layer).get("weight"), any(own.requires_grad for own in layer.parameters(recurse=False))
    if weight is not None and layer._forward_pre_hooks and trains:
        raise UnsupportedSiteError(
            f"{path}.weight is computed by a hook in every call (pruned, normalised), too late for the controller that "
            "reads it; make pruning permanent (torch.nn.utils.prune.remove), and use torch.nn.utils.parametrizations "
            "for its spectral_norm and weight_norm"
        )
    if not hasattr(layer, "weight"):
        raise MismatchError(
            f"{path} is a {type(layer).__name__}, which has no weight for the controller to read; call "
            "timestepper.detach(net) and attach again"
        )
    if not isinstance(layer.weight, Tensor):
        raise WrappedModelError(f"{path} was quantized since attach; quantize timestepper.fold(net)")
    if isinstance(weight, Tensor) and isinstance(weight._base, nn.Parameter):
        raise WrappedModelError(f"{path}.weight is a piece of FSDP1's flat parameter; {USE_FSDP2}")


def type_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def refuse_shared(model: nn.Module, sites: list[tuple[Entry, ...]]) -> None:
    """A parameter that several layers share cannot be folded: the others would be multiplied too.

    One that is named twice, by nested blocks say, would run with one of its step sizes and without the other.
    """
    owners = Counter(
        id(tensor)
        for module in model.modules()
        for own in (module._parameters, module._buffers)
        for tensor in own.values()
    )
    entering = [
        (entry.parameter, id(trained(model.get_submodule(entry.layer), entry.name))) for site in sites for entry in site
    ]
    named = Counter(parameter for _, parameter in entering)
    for path, parameter in entering:
        if owners[parameter] > 1:
            raise UnsupportedSiteError(
                f"{path} is shared with another layer, which its step size would change too; "
                "give each layer its own, or use the same block in both places"
            )
        if named[parameter] > 1:
            raise UnsupportedSiteError(
                f"{path} would take two step sizes and can take only one; give each branch a last layer of its own, "
                "or let the adapter of one block return None"
            )


def effective(entries: Sequence[Entry], parameters: list[Tensor], step_sizes: list[Tensor]) -> list[Tensor]:
    """Effective parameters: one step size vector for each, those of one shape together where they are alike."""
    alike = all(
        p.dtype == dt.dtype and p.device == dt.device and p.is_contiguous() and entry.plain
        for entry, p, dt in zip(entries, parameters, step_sizes, strict=True)
    )
    vectors = all(p.dim() == 1 for p in parameters)
    # The compiler fuses matrices better one by one, and ONNX has no such operations.
    exported = torch.compiler.is_exporting() or torch.jit.is_tracing()
    traced = exported or (torch.compiler.is_compiling() and not vectors)
    if not parameters or not alike or in_transform() or traced:
        return [entry.apply(p, dt) for entry, p, dt in zip(entries, parameters, step_sizes, strict=True)]
    if vectors:
        return list(torch._foreach_mul(parameters, step_sizes))
    return _by_shape(parameters, step_sizes)


def _by_shape(parameters: list[Tensor], step_sizes: list[Tensor]) -> list[Tensor]:
    """Stacked, so that many matrices take as many launches as one, in the backward pass, too."""
    made: list[Any] = [None] * len(parameters)
    for shape in dict.fromkeys(p.shape for p in parameters):
        places = [number for number, p in enumerate(parameters) if p.shape == shape]
        factors = torch.stack([step_sizes[n] for n in places]).view(len(places), -1, *[1] * (len(shape) - 1))
        own = [parameters[n] for n in places]
        whole = own[0].numel() * own[0].element_size() % _ALIGNED == 0
        products = torch.stack(own) * factors if whole else map(torch.mul, own, factors)
        for number, product in zip(places, products, strict=True):
            made[number] = product
    return made


def _unsupported(path: str, layer: nn.Module, role: str, supported: tuple[str, ...]) -> str:
    names = ", ".join(dict.fromkeys(kind.rpartition(".")[2] for kind in supported))
    return (
        f"{path}: {role} {type(layer).__name__}, which cannot take a step size into its parameters; "
        f"supported are {names} with their own (affine, neither pruned nor parametrised) weight"
    )
