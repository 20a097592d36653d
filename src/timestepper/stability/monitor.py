"""A look at the bound after every epoch of training, cheap enough to be left on.

The network's structure is looked at once. Then each look takes the newest weights and goes on with power iteration
where the last look stopped: weights move little in an epoch, so a few rounds follow them.
"""

import torch
from torch import Tensor, nn

from timestepper import api
from timestepper.sites import Site
from timestepper.stability.bound import block_ways, by_stage, layers_on, log_factor, split
from timestepper.stability.chain import full_precision, open_chain
from timestepper.stability.lipschitz import Ways
from timestepper.stability.norms import warm_estimates
from timestepper.stability.operators import Parameters, parameters_of


class Monitor:
    """``monitor.observe(net)`` gives the log-bound, its parts by stage and the evolution time, as scalars by name.

    ``input_shape`` is (channels, height, width). The first look does ``first`` rounds of power iteration, each later
    one ``rounds``. Norms approach their values from below, so the figure is an estimate and no certificate.
    ``memory`` is all that it keeps between looks: where it is restored, the next look is the one that would have been.
    """

    def __init__(self, input_shape: tuple[int, int, int], *, rounds: int = 5, first: int = 50):
        self.input_shape, self.rounds, self.first = input_shape, rounds, first
        self.memory: list[Tensor] = []
        self._blocks: list[tuple[str, Site, Ways]] = []  # each with its stage

    def prepare(self, net: nn.Module) -> None:
        """Find the ways through the network now, so that one whose bound is unknown is refused before it is trained."""
        reference = next(net.parameters())
        inputs = torch.randn(1, *self.input_shape, generator=torch.Generator().manual_seed(0)).to(reference)
        chain = open_chain(net, inputs)
        found = zip(chain.links, block_ways(chain), strict=True)
        self._blocks = [(link.stage, link.site, ways) for link, ways in found]

    @full_precision()
    @torch.no_grad()
    def observe(self, net: nn.Module) -> dict[str, float]:
        """Scalars of this moment; the network is neither changed nor, after the first look, run."""
        attached = api.is_attached(net)
        if not self._blocks:
            self.prepare(net)
        layers = layers_on([ways for *_, ways in self._blocks])
        norms = warm_estimates(layers, _newest(net, attached), self.memory, self.rounds, self.first)
        parts = [(stage, log_factor(*split(site, ways, norms.__getitem__))) for stage, site, ways in self._blocks]
        scalars = {"log_bound": sum(part for _, part in parts)}
        scalars |= {f"log_bound/{stage}": part for stage, part in by_stage(parts).items()}
        if attached:
            scalars |= {f"evolution_time/{stage}": time for stage, time in api.evolution_time(net).items()}
        return scalars


def _newest(net: nn.Module, attached: bool) -> Parameters:
    """The parameters that the network runs with now, step sizes included."""
    if not attached:
        return parameters_of(net)
    found = api.find_steps(net)
    trained = parameters_of(found.root)
    return trained | {name: value.to(trained[name]) for name, value in found.effective_parameters().items()}
