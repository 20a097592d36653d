"""A few real training steps, so that contracts are tested on networks that have moved."""

import torch
from torch import nn
from torch.nn import functional as F


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
