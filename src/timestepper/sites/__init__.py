"""Where the sites of a network are: adapters of the paper's families know theirs, any other network is discovered."""

from timestepper.sites.discovered import Discovery
from timestepper.sites.families import LIBRARIES, create_model, input_pixels, use_original_stride
from timestepper.sites.finding import find, is_known, search
from timestepper.sites.known import Branch, Site, Stage, find_stages, register, skipped_blocks
from timestepper.sites.stages import reduced

__all__ = [
    "LIBRARIES",
    "Branch",
    "Discovery",
    "Site",
    "Stage",
    "create_model",
    "find",
    "find_stages",
    "input_pixels",
    "is_known",
    "reduced",
    "register",
    "search",
    "skipped_blocks",
    "use_original_stride",
]
