"""All of the theory for one network, as plain data: what the command line prints and a report can draw."""

from typing import Any

from torch import Tensor, nn

from timestepper import api
from timestepper.stability.bound import Bound, proposition_1
from timestepper.stability.chain import open_chain
from timestepper.stability.euler import euler_condition
from timestepper.stability.gradients import gradient_shares
from timestepper.stability.perturbation import KINDS, measured_growth

_LOGS = ("log", "log_certified", "log_reshaped")


def analyse(net: nn.Module, inputs: Tensor, labels: Tensor | None = None, *, bound: bool = True) -> dict[str, Any]:
    """Bound, measured growth, Euler condition, gradient shares and step sizes, per block and in all; ready for JSON.

    ``inputs`` are a few normalised images on the network's device. ``bound=False`` leaves Proposition 1 out, for
    networks with layers whose norm cannot be computed.
    """
    chain = open_chain(net, inputs)
    attached = api.is_attached(net)
    found: dict[str, Any] = {"network": type(chain.model).__name__, "inputs": list(inputs.shape), "blocks": []}
    columns = _columns(chain.links, "stage", "path")  # of the blocks
    if bound:
        whole = proposition_1(chain)
        found["bound"] = _summary(whole)
        columns |= _columns(whole.blocks, "branch", "shortcut", *_LOGS)
        columns["layers"] = [{name: vars(norm) for name, norm in block.layers.items()} for block in whole.blocks]
    if bound and attached:
        without = proposition_1(open_chain(net, inputs, steps=False))
        found["bound_without_steps"] = _summary(without)
        columns["log_without_steps"] = [block.log for block in without.blocks]
    grown = {kind: measured_growth(chain, kind, labels=labels) for kind in KINDS}
    found["growth"] = {kind: {"end_to_end": growth.end_to_end, "mean": growth.mean} for kind, growth in grown.items()}
    columns |= {f"growth_{kind}": list(growth.blocks) for kind, growth in grown.items()}
    euler = euler_condition(chain)
    columns["eigenvalues"] = [[[value.real, value.imag] for value in block.eigenvalues] for block in euler]
    columns |= _columns(euler, "radius", "stable", "converged", "skipped", name="euler_{}")
    columns |= _columns(gradient_shares(chain, labels), "branch", "residual", name="{}_share")
    if attached:
        sizes = {stage: iter(dt.unbind()) for stage, dt in api.step_sizes(net).items()}
        each = [next(sizes[link.stage]) for link in chain.links]
        columns["step_size"] = [
            {"mean": dt.mean().item(), "least": dt.min().item(), "largest": dt.max().item()} for dt in each
        ]
        found["evolution_time"] = api.evolution_time(net)
    found["blocks"] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return found


def _columns(blocks: Any, *fields: str, name: str = "{}") -> dict[str, list[Any]]:
    return {name.format(field): [getattr(block, field) for block in blocks] for field in fields}


def _summary(bound: Bound) -> dict[str, Any]:
    return {name: getattr(bound, name) for name in (*_LOGS, "stages")}
