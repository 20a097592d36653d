"""Stages of discovered networks: sites of one width and one length of descriptor, in order of execution."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from timestepper.controllers import ControllerSpec, StageShape
from timestepper.sites.known import Site, Stage, with_unique_names

SHARE = 0.1  # of a network's parameters, which its controllers may have at most
FIRST_REDUCTION = 8


def grouped(sites: list[Site]) -> list[Stage]:
    """Sites of one width and descriptor length form a stage, also where two kinds take turns (attention and MLP).

    The paper's rule, neighbours only, is ``find_stages``.
    """
    found: dict[tuple[int, int], list[Site]] = {}
    for site in sites:
        found.setdefault((site.channels, site.descriptor), []).append(site)
    return with_unique_names([Stage(_common([site.path for site in run]), tuple(run)) for run in found.values()])


def reduced(stages: Sequence[Stage], controller: ControllerSpec, visible: bool, parameters: int) -> tuple[Stage, ...]:
    """With the smallest reduction that keeps the controllers at a tenth of the network's parameters."""
    reduction = FIRST_REDUCTION
    while reduction < max(stage.channels for stage in stages):
        if _size(stages, controller, visible, reduction) <= SHARE * parameters:
            break
        reduction *= 2
    return tuple(replace(stage, sites=tuple(replace(s, reduction=reduction) for s in stage.sites)) for stage in stages)


def _size(stages: Sequence[Stage], controller: ControllerSpec, visible: bool, reduction: int) -> int:
    with torch.device("meta"):
        built = [
            controller.build(StageShape(len(s.sites), s.channels, s.descriptor + visible, reduction)) for s in stages
        ]
    return sum(parameter.numel() for part in built for parameter in part.parameters())


def _common(paths: list[str]) -> str:
    """What the paths of a stage have in common: ``blocks.attn`` of ``blocks.0.attn`` and ``blocks.1.attn``."""
    split = [path.split(".") for path in paths]
    names = [parts[0] for parts in zip(*split, strict=False) if len(set(parts)) == 1]
    if len(paths) == 1 and names[-1].isdigit():
        names.pop()
    return ".".join(names) or "blocks"
