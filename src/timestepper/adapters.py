"""Blocks of your own: decorate a function from a block to its ``Branch`` with ``register``."""

from timestepper.sites.families import create_model, input_pixels, use_original_stride
from timestepper.sites.known import Branch, Site, Stage, find_stages, register, skipped_blocks

__all__ = [
    "Branch",
    "Site",
    "Stage",
    "create_model",
    "find_stages",
    "input_pixels",
    "register",
    "skipped_blocks",
    "use_original_stride",
]
