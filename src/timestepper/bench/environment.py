"""What a measurement was taken on: card, versions, commit."""

import platform

import torch

from timestepper import records


def environment(device: torch.device, commit: str | None = None) -> dict[str, str]:
    """``commit`` is for a copy of the source that carries no history."""
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    cuda = torch.version.cuda or "none"
    return {"card": card, "commit": commit or records.commit(), "cuda": cuda, **records.versions()}
