"""A few real training steps, so that contracts are tested on networks that have moved."""

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import timestepper
from timestepper.models import CifarResNet


def batch(size: int = 4, pixels: int = 32, classes: int = 5, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 3, pixels, pixels, generator=generator)
    return images, torch.randint(classes, (size,), generator=generator)


def train(net: nn.Module, steps: int = 3, lr: float = 0.1, **shape) -> nn.Module:
    """A few steps that move everything: step sizes leave 0.5, zero-initialised norms 0, running statistics (0, 1).

    Adam for the controllers, because its step does not depend on the scale of the gradient.
    """
    parts: dict[bool, list] = {True: [], False: []}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            parts[name.startswith("controllers.")].append(parameter)
    optimisers = [torch.optim.Adam(parts[True], lr=0.05)] if parts[True] else []
    optimisers += [torch.optim.SGD(parts[False], lr=lr)] if parts[False] else []
    net.train()
    for seed in range(steps):
        images, labels = batch(seed=seed, **shape)
        F.cross_entropy(net(images), labels).backward()
        nn.utils.clip_grad_norm_(parts[False], 1.0)
        for optimiser in optimisers:
            optimiser.step()
        net.zero_grad()
    return net


def plain(kind: type[CifarResNet] = CifarResNet, depth: int = 8) -> CifarResNet:
    """Three blocks, fresh."""
    torch.manual_seed(0)
    return kind(depth, num_classes=5, width=8)


def small(kind: type[CifarResNet] = CifarResNet) -> CifarResNet:
    """The same, attached and trained for a few steps."""
    net = timestepper.attach(plain(kind))
    net.load_state_dict(_trained())
    return net


def tiny(kind: str = "lstm") -> nn.Sequential:
    """One block and a head, attached: what the slowest compilers can do in seconds."""
    body = plain()
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    return timestepper.attach(nn.Sequential(body.conv1, body.layer1, head), kind)


@functools.cache
def _trained() -> dict[str, Tensor]:
    return train(timestepper.attach(plain())).state_dict()


def gradients(net: nn.Module, images: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
    """Of every parameter that is trained, from zero."""
    net.zero_grad()
    F.cross_entropy(net(batch()[0] if images is None else images), batch()[1] if labels is None else labels).backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters() if parameter.requires_grad}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """To the last bit, under the same names in the same order."""
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)


def bits(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def fits_its_fold(net: nn.Module) -> bool:
    """Whether the network's logits are those of its fold, to the last bit."""
    images, _ = batch()
    with torch.no_grad():
        return torch.equal(net.eval()(images), timestepper.fold(net)(images))
