"""Common corruptions that need no download, at five severities, on pixel values in [0, 1].

The strengths are those of Hendrycks and Dietterich (ICLR 2019): the CIFAR-10-C ones for images up to 64 pixels wide,
the ImageNet-C ones for larger images.
"""

import io
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from timestepper.errors import StabilityError
from timestepper.stability import draws

SEVERITIES = (1, 2, 3, 4, 5)
_SMALL_UP_TO = 64
_SMALL: dict[str, tuple[float, ...]] = {
    "blur": (0.4, 0.6, 0.7, 0.8, 1.0),  # standard deviation in pixels
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),  # what is left of it
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),  # added to the value of each colour
    "jpeg": (80, 65, 58, 50, 40),  # quality
    "shot_noise": (500, 250, 100, 75, 50),  # photons in a white pixel
    "impulse_noise": (0.01, 0.02, 0.03, 0.05, 0.07),  # share of values that become black or white
}
_LARGE: dict[str, tuple[float, ...]] = {
    "blur": (1, 2, 3, 4, 6),
    "contrast": (0.4, 0.3, 0.2, 0.1, 0.05),
    "brightness": (0.1, 0.2, 0.3, 0.4, 0.5),
    "jpeg": (25, 18, 15, 10, 7),
    "shot_noise": (60, 25, 12, 5, 3),
    "impulse_noise": (0.03, 0.06, 0.09, 0.17, 0.27),
}
NAMES = tuple(_SMALL)


def corrupt(pixels: Tensor, name: str, severity: int, indices: Sequence[int], seed: int = 0) -> Tensor:
    """Corrupt a batch (N, C, H, W) of pixel values; ``indices`` say which samples these are, for their noise."""
    if name not in _SMALL or severity not in SEVERITIES:
        raise StabilityError(
            f"unknown corruption {name!r} at severity {severity}; known are {', '.join(NAMES)} at 1 to 5"
        )
    strength = (_SMALL if pixels.shape[3] <= _SMALL_UP_TO else _LARGE)[name][severity - 1]
    key = (seed, NAMES.index(name), severity)
    if name == "shot_noise":
        corrupted = draws.poisson(pixels * strength, indices, *key) / strength
    elif name == "impulse_noise":  # half of the chosen values become white, the other half black
        chance = draws.uniform(pixels, indices, *key)
        corrupted = torch.where(chance < strength, (chance < strength / 2).to(pixels), pixels)
    elif name == "contrast":
        mean = pixels.mean((2, 3), keepdim=True)
        corrupted = mean + strength * (pixels - mean)
    else:
        corrupted = {"blur": _blur, "brightness": _brightness, "jpeg": _jpeg}[name](pixels, strength)
    return corrupted.clamp(0, 1)


def _blur(pixels: Tensor, sigma: float) -> Tensor:
    """Gaussian, cut off at four standard deviations, the border repeated."""
    reach = math.ceil(4 * sigma)
    taps = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=pixels.device, dtype=pixels.dtype) / sigma) ** 2)
    taps = taps / taps.sum()
    channels = pixels.shape[1]
    padded = F.pad(pixels, (reach, reach, reach, reach), mode="replicate")
    rows = F.conv2d(padded, taps.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, taps.reshape(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def _brightness(pixels: Tensor, added: float) -> Tensor:
    """Raise the value of the HSV colour; hue and saturation stay, so all channels grow by one factor."""
    value = pixels.amax(1, keepdim=True)
    raised = (value + added).clamp(0, 1)
    return torch.where(value > 0, pixels * raised / value.clamp_min(1e-6), raised)


def _jpeg(pixels: Tensor, quality: float) -> Tensor:
    """Through Pillow's encoder and back, as grey (1 channel) or RGB images (3 channels)."""
    from PIL import Image

    if pixels.shape[1] not in (1, 3):
        raise StabilityError(f"JPEG images have 1 or 3 channels, not {pixels.shape[1]}; leave the jpeg corruption out")
    images = (pixels * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    found = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file, "JPEG", quality=int(quality))
        found.append(np.asarray(Image.open(file), dtype=np.float32).reshape(image.shape) / 255)
    return torch.from_numpy(np.stack(found)).permute(0, 3, 1, 2).to(pixels)
