"""The linear layers of a block, described by name and geometry, so that fresh weights can be looked up any time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from timestepper.errors import StabilityError
from timestepper.stability.spectral import Geometry

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Operator:
    """A convolution with the batch norm behind it, if any; a linear layer; or a batch norm alone (``path`` is None)."""

    geometry: Geometry
    path: str | None = None
    norm: str | None = None
    eps: float = 0.0

    @property
    def name(self) -> str:
        return self.path or self.norm or ""

    def weight(self, parameters: Parameters) -> Tensor:
        """The effective kernel (outputs, inputs / groups, k, k): batch norm's scale is in its rows."""
        scale = None
        if self.norm is not None:
            scale = (parameters[f"{self.norm}.running_var"] + self.eps).rsqrt()
            if f"{self.norm}.weight" in parameters:
                scale = scale * parameters[f"{self.norm}.weight"]
            scale = scale.reshape(-1, 1, 1, 1)
        if self.path is None:
            assert scale is not None
            return scale
        kernel = parameters[f"{self.path}.weight"]
        kernel = kernel.reshape(*kernel.shape, *[1] * (4 - kernel.dim()))
        return kernel if scale is None else kernel * scale


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, in float32 or better."""
    tensors = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])

    def widened(tensor: Tensor) -> Tensor:
        kind = torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(kind)

    return {name: widened(tensor) for name, tensor in tensors.items()}


def convolution(path: str, layer: nn.Conv2d, size: tuple[int, int]) -> Operator:
    if layer.padding_mode != "zeros":
        raise StabilityError(
            f"{path} pads with {layer.padding_mode!r}; only the norm of zero padding is known, use padding_mode='zeros'"
        )
    kernel = (layer.kernel_size[0], layer.kernel_size[1])
    if kernel == (1, 1):  # acts on each pixel alone, so one pixel is enough
        return Operator(Geometry(groups=layer.groups), path)
    padding = (0, 0) if layer.padding == "valid" else layer.padding
    if isinstance(padding, str):  # "same"
        whole = [d * (k - 1) for d, k in zip(layer.dilation, kernel, strict=True)]
        if any(pixels % 2 for pixels in whole):
            raise StabilityError(
                f"{path} pads unevenly ('same' with an even kernel); use an odd kernel or a number for padding"
            )
        padding = tuple(pixels // 2 for pixels in whole)
    (top, left), (down, across), (tall, wide) = padding, layer.stride, layer.dilation
    return Operator(Geometry(size, (down, across), (top, left), (tall, wide), layer.groups), path)


def linear(path: str) -> Operator:
    return Operator(Geometry(), path)


def batch_norm(path: str, layer: nn.BatchNorm2d) -> Operator:
    if layer.running_var is None:
        raise StabilityError(
            f"{path} keeps no running statistics, so it is no fixed linear map; use track_running_stats=True"
        )
    return Operator(Geometry(groups=layer.num_features), norm=path, eps=layer.eps)


def joined(convolution: Operator, norm: Operator) -> Operator:
    """A convolution and the batch norm behind it as one operator."""
    return replace(convolution, norm=norm.norm, eps=norm.eps)
