"""What a measurement was taken on: card, versions, commit."""

import importlib.metadata
import platform

import torch

from timestepper.experiment.record import commit as current_commit


def environment(device: torch.device, commit: str | None = None) -> dict[str, str]:
    """``commit`` is for a copy of the source that carries no history."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    versions = {package: _version(package) for package in ("torch", "triton", "timm", "torchvision")}
    return {
        "card": card,
        "commit": commit or current_commit(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda or "none",
        **versions,
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
