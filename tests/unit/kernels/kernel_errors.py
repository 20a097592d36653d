"""Whether our kernels agree with their references: largest relative errors, kernel by kernel."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from timestepper.kernels import ops, reference
from timestepper.kernels.convolution import conv3x3
from timestepper.kernels.layout import Layout, layout

Shape = tuple[int, int, int, int]  # sites, descriptor, channels, hidden

# L, D, C, H of the stages of some networks; the last one has sizes that fit no block and a stage of one site.
STAGES: dict[str, tuple[Shape, ...]] = {
    "cifar/resnet56": ((9, 288, 16, 4), (9, 576, 32, 8), (9, 1152, 64, 16)),
    "cifar/resnet506": ((84, 288, 16, 4), (84, 576, 32, 8), (84, 1152, 64, 16)),
    "timm/resnet50": ((3, 320, 256, 32), (4, 640, 512, 64), (6, 1280, 1024, 128), (3, 2560, 2048, 256)),
    "odd": ((3, 37, 10, 3), (5, 65, 70, 23), (1, 300, 33, 17)),
}


def random_controllers(shapes: Sequence[Shape]) -> tuple[Tensor, list[Tensor], Tensor]:
    """Descriptors, parameters and a gradient of the step sizes, in float64 on the CPU."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    parameters = []
    for _, d, c, h in shapes:
        parameters += [normal(h, d) * (2 / d) ** 0.5, normal(h) * 0.1]
        parameters += [normal(4 * h, h) / h**0.5, normal(4 * h, h) / h**0.5, normal(4 * h) * 0.1]
        parameters += [normal(c, h) / h**0.5, normal(c) * 0.1]
    where = layout(numbers(shapes))
    return normal(where.described[-1]), parameters, normal(where.steps[-1])


def controller_errors(shapes: Sequence[Shape], device: torch.device, twice: bool = True) -> dict[str, float]:
    """Step sizes, state and gradients of the kernels in float32 against the reference in float64, and a second run."""
    where = layout(numbers(shapes))
    exact = random_controllers(shapes)
    described, parameters, gradient = exact
    rounded = [value.float().double() for value in parameters]
    steps, state = reference.forward(described.float().double(), rounded, where)
    expected = reference.backward(gradient.float().double(), steps, described.float().double(), state, rounded, where)
    found = _run(described, parameters, gradient, shapes, device)
    errors = {
        "step sizes": relative_error(found[0], steps),
        "state": relative_error(found[1], state),
        "descriptor gradient": relative_error(found[3], expected[1]),
    }
    for name, worst in parameter_errors(found[2], expected[0], where).items():
        errors[f"gradient of {name}"] = worst
    if twice:
        again = _run(described, parameters, gradient, shapes, device)
        errors["two runs differ by"] = max(float((a - b).abs().max()) for a, b in zip(found, again, strict=True))
    return errors


def describe_errors(device: torch.device, widest: int = 2048) -> dict[str, float]:
    """Descriptors of weights in every layout against float64."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((16, 3, 3, 3), (64, 64, 3, 3), (widest, 512, 1, 1), (70, 33, 3, 3), (12, 30, 1, 3), (10, 100))
    weights = [torch.randn(*size, generator=generator) + 0.5 for size in sizes]
    errors = {}
    for name, format in (("contiguous", torch.contiguous_format), ("channels last", torch.channels_last)):
        placed = [w.to(device, memory_format=format) if w.dim() == 4 else w.to(device) for w in weights]
        exact = reference.describe([w.double() for w in weights])
        errors[f"descriptors, {name}"] = relative_error(ops.describe(placed), exact)
    return errors


def scale_errors(device: torch.device) -> dict[str, float]:
    """Parameters times step sizes and the gradients of both; a site may have one parameter or several."""
    generator = torch.Generator().manual_seed(0)
    sizes = [16, 16, 300, 70, 70, 70]
    places = [70, 70, 86, 0, 0, 0]
    parameters = [torch.randn(size, generator=generator) for size in sizes]
    steps, gradient = torch.rand(386, generator=generator), torch.randn(sum(sizes), generator=generator)
    exact = [parameter.double() for parameter in parameters]
    product = reference.scale(exact, steps.double(), places)
    expected = reference.scale_backward(gradient.double(), exact, steps.double(), places)
    placed, dt = [parameter.to(device) for parameter in parameters], steps.to(device)
    scaled = ops.scale(placed, dt, places)
    found = ops.scale_backward(gradient.to(device), placed, dt, places)
    return {
        "product": relative_error(scaled, product),
        "gradient of parameters": relative_error(found[0], expected[0]),
        "gradient of step sizes": relative_error(found[1], expected[1]),
    }


def convolution_case(
    shape: tuple[int, int, int, int, int], device: torch.device, dtype: torch.dtype, channels_last: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Images, weight and a gradient for batch, height, width, input and output channels; the images channels-last."""
    batch, height, width, inputs, outputs = shape
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randn(batch, inputs, height, width, generator=generator)
    weight = torch.randn(outputs, inputs, 3, 3, generator=generator) / (9 * inputs) ** 0.5
    gradient = torch.randn(batch, outputs, height, width, generator=generator)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x, gradient = (images.to(device, dtype, memory_format=torch.channels_last) for images in (x, gradient))
    return x, weight.to(device, dtype, memory_format=layout), gradient


def exact_convolution(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same by PyTorch in float64, computed on the device, returned on the CPU."""
    exact = convolution_results(x.double(), weight.double(), gradient.double(), partial(F.conv2d, padding=1))
    return exact[0].cpu(), exact[1].cpu(), exact[2].cpu()


def convolution_errors(
    shape: tuple[int, int, int, int, int], device: torch.device, dtype: torch.dtype, channels_last: bool = True
) -> dict[str, float]:
    """The convolution kernels against float64."""
    case = convolution_case(shape, device, dtype, channels_last)
    names = ("output", "input gradient", "weight gradient")
    compared = zip(names, convolution_results(*case), exact_convolution(*case), strict=True)
    return {name: relative_error(found, exact) for name, found, exact in compared}


def convolution_results(
    x: Tensor, weight: Tensor, gradient: Tensor, convolve: Callable[[Tensor, Tensor], Tensor] = conv3x3
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, input gradient and weight gradient."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = convolve(x, weight)
    by_input, by_weight = torch.autograd.grad(y, (x, weight), gradient)
    return y.detach(), by_input, by_weight


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm; NaN counts as infinite."""
    error = float((found.double().cpu() - expected).norm() / expected.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


def numbers(shapes: Sequence[Shape]) -> tuple[int, ...]:
    return tuple(number for shape in shapes for number in shape)


def _run(described: Tensor, parameters: list[Tensor], gradient: Tensor, shapes: Sequence[Shape], device: torch.device):
    placed = [value.float().to(device) for value in parameters]
    source = described.float().to(device)
    flat = list(numbers(shapes))
    steps, state = ops.lstm_steps(source, placed, flat)
    return steps, state, *ops.lstm_steps_backward(gradient.float().to(device), steps, source, state, placed, flat)


def parameter_errors(found: Tensor, expected: Tensor, where: Layout) -> dict[str, float]:
    """The worst stage for each of the seven parameters; a gradient that is zero by nature is left out."""
    names = (
        "input weight",
        "input bias",
        "gate weight x",
        "gate weight h",
        "gate bias",
        "output weight",
        "output bias",
    )
    errors = dict.fromkeys(names, 0.0)
    parts = zip(found.cpu().split(where.parameter_sizes), expected.split(where.parameter_sizes), strict=True)
    for place, (mine, right) in enumerate(parts):
        if right.norm() > 0:
            name = names[place % 7]
            errors[name] = max(errors[name], relative_error(mine, right))
    return errors
