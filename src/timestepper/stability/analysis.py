"""All of the theory for one network, as plain data: what the command line prints and a report can draw."""

from typing import Any

from torch import Tensor, nn

from timestepper import api
from timestepper.stability.bound import Bound, proposition_1
from timestepper.stability.chain import Chain, open_chain
from timestepper.stability.euler import EulerBlock, euler_condition
from timestepper.stability.gradients import gradient_shares
from timestepper.stability.perturbation import KINDS, measured_growth


def analyse(net: nn.Module, inputs: Tensor, labels: Tensor | None = None, *, bound: bool = True) -> dict[str, Any]:
    """Bound, measured growth, Euler condition, gradient shares and step sizes, per block and in all; ready for JSON.

    ``inputs`` are a few normalised images on the network's device. ``bound=False`` leaves Proposition 1 out, for
    networks with layers whose norm cannot be computed.
    """
    chain = open_chain(net, inputs)
    blocks: list[dict[str, Any]] = [{"stage": link.stage, "path": link.path} for link in chain.links]
    found: dict[str, Any] = {"network": type(chain.model).__name__, "inputs": list(inputs.shape), "blocks": blocks}
    if bound:
        found["bound"] = _add_bound(blocks, proposition_1(chain))
        if api.is_attached(net):
            without = proposition_1(open_chain(net, inputs, steps=False))
            found["bound_without_steps"] = _summary(without)
            _add(blocks, "log_without_steps", [block.log for block in without.blocks])
    found["growth"] = _add_growth(blocks, chain, labels)
    _add_euler(blocks, euler_condition(chain))
    shares = gradient_shares(chain, labels)
    _add(blocks, "branch_share", [share.branch for share in shares])
    _add(blocks, "residual_share", [share.residual for share in shares])
    if api.is_attached(net):
        _add_step_sizes(blocks, net)
        found["evolution_time"] = api.evolution_time(net)
    return found


def _add(blocks: list[dict[str, Any]], name: str, values: list) -> None:
    for block, value in zip(blocks, values, strict=True):
        block[name] = value


def _add_bound(blocks: list[dict[str, Any]], bound: Bound) -> dict[str, Any]:
    for name in ("branch", "shortcut", "log", "log_certified", "log_reshaped"):
        _add(blocks, name, [getattr(block, name) for block in bound.blocks])
    layers = [{name: vars(norm) for name, norm in block.layers.items()} for block in bound.blocks]
    _add(blocks, "layers", layers)
    return _summary(bound)


def _summary(bound: Bound) -> dict[str, Any]:
    return {
        "log": bound.log,
        "log_certified": bound.log_certified,
        "log_reshaped": bound.log_reshaped,
        "stages": bound.stages,
    }


def _add_growth(blocks: list[dict[str, Any]], chain: Chain, labels: Tensor | None) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        growth = measured_growth(chain, kind, labels=labels)
        _add(blocks, f"growth_{kind}", list(growth.blocks))
        found[kind] = {"end_to_end": growth.end_to_end, "mean": growth.mean}
    return found


def _add_euler(blocks: list[dict[str, Any]], found: list[EulerBlock]) -> None:
    _add(blocks, "eigenvalues", [[[value.real, value.imag] for value in block.eigenvalues] for block in found])
    _add(blocks, "euler_radius", [block.radius for block in found])
    _add(blocks, "euler_stable", [block.stable for block in found])
    _add(blocks, "euler_converged", [block.converged for block in found])
    _add(blocks, "euler_skipped", [block.skipped for block in found])


def _add_step_sizes(blocks: list[dict[str, Any]], net: nn.Module) -> None:
    sizes = {stage: iter(dt.unbind()) for stage, dt in api.step_sizes(net).items()}
    for block in blocks:
        dt = next(sizes[block["stage"]])
        block["step_size"] = {"mean": dt.mean().item(), "least": dt.min().item(), "largest": dt.max().item()}
