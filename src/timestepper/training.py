"""What an optimiser is given of an attached network."""

from numbers import Real
from typing import Any, TypeVar

from torch import Tensor, nn

from timestepper.errors import StepSizeError
from timestepper.steps import find_steps

Network = TypeVar("Network", bound=nn.Module)


def controller_parameters(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of the controllers: what a network has more than before it was attached to.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.

    Returns:
        In the order of the stages; none for ``fixed``.

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    return list(find_steps(net).controllers.parameters())


def parameter_groups(
    net: nn.Module,
    *,
    weight_decay: float | None = None,
    controller_weight_decay: float | None = None,
    controller_lr: float | None = None,
) -> list[dict[str, Any]]:
    """Two groups for an optimiser, the network's and its controllers' parameters, so that they can be trained apart.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.
        weight_decay: of the network; by default the optimiser's own.
        controller_weight_decay: of the controllers; by default that of the network, as the paper decays everything
            alike, and none for ``gain``.
        controller_lr: learning rate of the controllers; by default the optimiser's own.

    Returns:
        What ``torch.optim.SGD(timestepper.parameter_groups(net), lr=0.1)`` takes. Only parameters that are trained.

    Raises:
        NotAttachedError: ``net`` has no controllers.
        StepSizeError: of an option that is no number, or negative.
    """
    numbers = {"weight_decay": weight_decay, "controller_weight_decay": controller_weight_decay}
    for option, value in (numbers | {"controller_lr": controller_lr}).items():
        if value is not None and (type(value) is bool or not isinstance(value, Real | Tensor) or not value >= 0):
            raise StepSizeError(f"{option} must be a number of at least 0, not {value!r}")
    controllers = controller_parameters(net)
    own = set(map(id, controllers))
    if controller_weight_decay is None:
        decays = find_steps(net).stepping.controller.controller.decays
        controller_weight_decay = weight_decay if decays else 0.0
    groups = {
        "network": ([p for p in net.parameters() if id(p) not in own], {"weight_decay": weight_decay}),
        "controllers": (controllers, {"weight_decay": controller_weight_decay, "lr": controller_lr}),
    }
    return [
        {
            "name": name,
            "params": [parameter for parameter in members if parameter.requires_grad],
            **{option: value for option, value in options.items() if value is not None},
        }
        for name, (members, options) in groups.items()
    ]


def freeze_base(net: Network) -> Network:
    """Train the step sizes alone: every other parameter gets ``requires_grad=False``.

    Batch norms still follow their statistics in train mode; call ``net.eval()`` to hold these too.

    Args:
        net: an attached network, also inside DDP, AveragedModel or torch.compile.

    Returns:
        The same network.

    Raises:
        NotAttachedError: ``net`` has no controllers.
    """
    controllers = find_steps(net).controllers
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    controllers.requires_grad_(True)
    return net
