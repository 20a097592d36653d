"""The residual blocks of a network as a chain y_0 -> y_1 -> ... -> y_D, with the features of real inputs on it.

Every tool works on a plain copy in evaluation mode: an attached network is folded first, so that its step sizes are
in the weights, and plain, attached and folded networks take one path.
"""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from timestepper import api
from timestepper.errors import NoSitesError, StabilityError, first_line
from timestepper.sites import Site, find_stages

ONLY_CHAINS = (
    "only chains of residual blocks that an adapter knows (ResNet, ResNeXt, SENet) are covered; "
    "noise, attacks and corruptions work on every network (--no-theory --noise)"
)


@contextmanager
def full_precision() -> Iterator[None]:
    """Neither autocast nor TF32: with ten bits, the difference of two nearby features is mostly rounding."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass(frozen=True)
class Link:
    """One residual block: where it is, and its part of the plain copy."""

    stage: str
    site: Site
    block: nn.Module

    @property
    def path(self) -> str:
        return self.site.path


@dataclass(frozen=True)
class Chain:
    """A network's blocks in the order in which they run, and the features y_0 ... y_D that one batch left there."""

    model: nn.Module
    inputs: Tensor
    links: tuple[Link, ...]
    features: tuple[Tensor, ...]

    def run(self, features: Tensor) -> list[Tensor]:
        """y_0 ... y_D for other features y_0."""
        found = [features]
        for link in self.links:
            found.append(link.block(found[-1].clone()))  # a block may work in place
        return found

    def logits(self, features: Tensor) -> Tensor:
        """The network's output for other features y_0."""
        with self.links[0].block.register_forward_pre_hook(lambda block, args: (features.clone(),)):
            return self.model(self.inputs)


def branch_end(link: Link) -> nn.Module:
    """The module of the block whose output is the branch: its gate, or else its last layer."""
    gate, last = link.site.gate, link.site.last[-1]
    whole = gate.rpartition(".")[0] if gate is not None else last
    return link.block.get_submodule(whole.removeprefix(f"{link.path}."))


def plain_copy(net: nn.Module, *, steps: bool = True) -> nn.Module:
    """The network without controllers, in evaluation mode: with its step sizes in the weights, or without (dt = 1)."""
    for name, value in net.state_dict().items():
        if value.is_floating_point() and not value.isfinite().all():
            raise StabilityError(
                f"{name} holds NaN or infinity; no figure can be computed, go back to a sound checkpoint"
            )
    if not api.is_attached(net):
        model = copy.deepcopy(net)
    elif steps:
        model = api.fold(net)
    else:
        model = api.detach(copy.deepcopy(net))
    return model.eval().requires_grad_(False)


@full_precision()
def open_chain(net: nn.Module, inputs: Tensor, *, steps: bool = True) -> Chain:
    """Run the network once on ``inputs`` and look at what enters and leaves each residual block."""
    model = plain_copy(net, steps=steps)
    try:
        stages = find_stages(model)
    except NoSitesError as error:  # its advice, to register a block, is for who attaches
        raise StabilityError(f"{type(model).__name__} has no block that the theory covers; {ONLY_CHAINS}") from error
    links = {
        site.path: Link(stage.name, site, model.get_submodule(site.path)) for stage in stages for site in stage.sites
    }
    order: list[str] = []
    entered: list[Tensor] = []
    left: list[Tensor] = []

    def before(path: str):
        def hook(block: nn.Module, args: tuple) -> None:
            if len(args) != 1 or not isinstance(args[0], Tensor):
                raise StabilityError(f"{path} takes {len(args)} arguments, not one feature map; {ONLY_CHAINS}")
            order.append(path)
            entered.append(args[0].detach().clone())

        return hook

    def after(block: nn.Module, args: tuple, output: Tensor) -> None:
        if not isinstance(output, Tensor):
            raise StabilityError(f"{order[-1]} gives a {type(output).__name__}, not one feature map; {ONLY_CHAINS}")
        left.append(output.detach().clone())

    with ExitStack() as hooks:
        for path, link in links.items():
            hooks.enter_context(link.block.register_forward_pre_hook(before(path)))
            hooks.enter_context(link.block.register_forward_hook(after))
        run(model, inputs)
    _check_chain(list(links), order, entered, left)
    return Chain(model, inputs, tuple(links[path] for path in order), (*entered, left[-1]))


@torch.no_grad()
def run(model: nn.Module, inputs: Tensor) -> Tensor:
    """The network's output; inputs that it cannot take are the user's mistake, said in one line."""
    if len(inputs) == 0:
        raise StabilityError("there are no images in this batch; give at least one")
    try:
        outputs = model(inputs)
    except StabilityError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise StabilityError(
            f"{type(model).__name__} cannot run on inputs of shape {tuple(inputs.shape)} ({first_line(error)}); "
            "give the channels and the size that it was made for"
        ) from error
    if not outputs.isfinite().all():
        raise StabilityError(f"{type(model).__name__} gives NaN or infinity on these inputs; check their normalisation")
    return outputs


def _check_chain(paths: list[str], order: list[str], entered: list[Tensor], left: list[Tensor]) -> None:
    """Proposition 1 speaks of blocks that follow each other directly, each used once."""
    if sorted(order) != sorted(paths):
        odd = next(path for path in paths if order.count(path) != 1)
        raise StabilityError(f"{odd} ran {order.count(odd)} times in one pass, not once; {ONLY_CHAINS}")
    for path, following, output, entering in zip(order, order[1:], left, entered[1:], strict=False):
        if not torch.equal(output, entering):  # which tensors of different shapes are not
            between = f"there are layers between {path} and {following}, which no residual block holds"
            raise StabilityError(f"{between}; {ONLY_CHAINS}")
