"""What attach, fold and frozen_steps warn of: they did what was asked, which is perhaps not what was meant."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from timestepper import reparam
from timestepper.controllers import ControllerSpec

_CALLER = 4  # of attach and of frozen_steps, which are decorated once
_expected: ContextVar[bool] = ContextVar("_expected", default=False)


@contextmanager
def trained_is_expected() -> Iterator[None]:
    """Silences what attach warns of: controllers that were saved with a trained network belong to it and its sites.

    (``warnings.catch_warnings`` would reach into other threads.)
    """
    token = _expected.set(True)
    try:
        yield
    finally:
        _expected.reset(token)


def warn_if_trained(model: nn.Module, controller: ControllerSpec, start: float | None) -> None:
    """Step sizes of about a half would change what a trained network computes: one whose norms' weights differ."""
    if start is not None or controller.options.get("value") == 1 or _expected.get():
        return
    better = '"channel(1)"' if controller.controller.own_start else 'start="identity"'
    for path, module in model.named_modules():
        if "Norm" not in type(module).__name__:
            continue
        weight = reparam.trained(module, "weight")
        if weight is None or type(weight) not in (nn.Parameter, torch.Tensor) or weight.is_meta or weight.dim() != 1:
            continue  # matrices start random
        if weight.numel() and bool((weight != weight[0]).any()):
            warnings.warn(
                f"{type(model).__name__} looks trained (the weights of {path} differ), and with {controller} it no "
                f"longer computes what it has learned; attach(net, {better}) begins with its own function",
                stacklevel=_CALLER,
            )
            return


def warn_if_left_out(model: nn.Module, taken: int, left_out: int) -> None:
    """Residual sums that discovery has refused, where the user has not chosen among them."""
    if left_out and not _expected.get():
        warnings.warn(
            f"{type(model).__name__}: {left_out} of {taken + left_out} residual sums take no step size; "
            "print(timestepper.discover(net)) says why",
            stacklevel=_CALLER,
        )


def warn_if_training(model: nn.Module) -> None:
    """Inside frozen_steps a backward pass would leave controllers and last layers as they are, without a word."""
    if model.training and torch.is_grad_enabled():
        warnings.warn(
            f"{type(model).__name__} is in train mode: inside frozen_steps no gradient reaches its controllers and "
            "the layers with a step size; train outside, or call net.eval() first",
            stacklevel=_CALLER,
        )


def warn_of_rounding(dtypes: set[torch.dtype]) -> None:
    """A network in half precision loses bits in the one cast; say how many."""
    for dtype in (dtype for dtype in dtypes if dtype.itemsize < 4):
        warnings.warn(
            f"folded in float32 and rounded to {str(dtype).removeprefix('torch.')}: "
            f"each weight changes by at most {torch.finfo(dtype).eps / 2:.1e} of its size",
            stacklevel=5,  # of who calls fold, which is decorated twice
        )
