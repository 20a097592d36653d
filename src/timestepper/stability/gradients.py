"""How much of each gradient comes from the branches (Eq. 8): near zero, the blocks are idle."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from timestepper.stability.chain import Chain, branch_end, full_precision


@dataclass(frozen=True)
class GradientShare:
    """Two ratios at the features y_n that enter a block.

    ``branch``    ||J^T dL/ds|| / ||dL/dy_n||, with s the sum of shortcut and branch: this block's branch alone.
    ``residual``  ||dL/dy_n - dL/dy_D|| / ||dL/dy_n||: Eq. 8's second term, all branches from here to the last
                  features y_D of this size. None where the block changes the size, because Eq. 8 does not hold there.

    Both are None where no gradient arrives at all, as behind a decision beyond doubt.
    """

    stage: str
    path: str
    branch: float | None
    residual: float | None


@full_precision()
def gradient_shares(chain: Chain, labels: Tensor | None = None) -> list[GradientShare]:
    """Measure Eq. 8 with the cross-entropy against ``labels`` or, without them, the network's own decision."""
    features, branches, logits = _recorded_run(chain)
    target = logits.argmax(1) if labels is None else labels
    loss = F.cross_entropy(logits, target, ignore_index=-1)
    gradients = torch.autograd.grad(loss, [*features, *branches], retain_graph=True)
    at_features, at_sums = gradients[: len(features)], gradients[len(features) :]
    shares = []
    for index, link in enumerate(chain.links):
        here = at_features[index]
        (through,) = torch.autograd.grad(branches[index], features[index], at_sums[index], retain_graph=True)
        end = index
        while end + 1 < len(features) and features[end + 1].shape == here.shape:  # to the last ones of this size
            end += 1
        residual = None if end == index else _ratio(here - at_features[end], here)
        shares.append(GradientShare(link.stage, link.path, _ratio(through, here), residual))
    return shares


def _recorded_run(chain: Chain) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """One pass that keeps y_0 ... y_D and every branch's output in the graph."""
    features: list[Tensor] = []
    branches: list[Tensor] = []

    def enter(block, args):
        features.append(args[0] if features else args[0].detach().requires_grad_())
        return (features[-1].clone(),)  # what is kept must not be changed in place

    def keep(kept, output):
        kept.append(output)
        return output.clone()

    with ExitStack() as hooks:
        for link in chain.links:
            hooks.enter_context(link.block.register_forward_pre_hook(enter))
            hooks.enter_context(branch_end(link).register_forward_hook(lambda *hooked: keep(branches, hooked[-1])))
        hooks.enter_context(chain.links[-1].block.register_forward_hook(lambda *hooked: keep(features, hooked[-1])))
        return features, branches, chain.model(chain.inputs)


def _ratio(part: Tensor, whole: Tensor) -> float | None:
    length = whole.double().norm().item()
    return part.double().norm().item() / length if length > 0 else None
