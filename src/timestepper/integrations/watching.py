"""What the callbacks share: the attached parts of a model, what to log of them, and their folded weights."""

from pathlib import Path

from torch import nn

from timestepper.api import evolution_time, step_sizes
from timestepper.errors import NotAttachedError, WrappedModelError
from timestepper.links import in_shards
from timestepper.saving import save_folded
from timestepper.steps import find


def attached_parts(model: nn.Module) -> dict[str, nn.Module]:
    """The attached networks inside a model by their paths, ``""`` for the model itself."""
    parts = {path: part for path, part in model.named_modules() if find(part) is not None}
    if not parts:
        raise NotAttachedError(f"{type(model).__name__} has no controllers to watch; call timestepper.attach first")
    return parts


def look_ahead(model: nn.Module, fold_to: str | Path | None) -> None:
    """Say what could not be done, before anything is trained."""
    for part in attached_parts(model).values():
        if fold_to is not None and in_shards(part):
            raise WrappedModelError(
                f"{type(part).__name__} is sharded and cannot be folded at the end; leave fold_to out, load the full "
                "state dict into an attached network that is not sharded, and fold that one"
            )


def scalars(model: nn.Module) -> dict[str, float]:
    """Mean step size and evolution time of every stage."""
    found: dict[str, float] = {}
    for path, part in attached_parts(model).items():
        prefix = f"{path}." if path else ""
        found |= {f"step_size/{prefix}{stage}": dt.mean().item() for stage, dt in step_sizes(part).items()}
        found |= {f"evolution_time/{prefix}{stage}": time for stage, time in evolution_time(part).items()}
    return found


def write_folded(model: nn.Module, folder: str | Path) -> list[Path]:
    """The folded weights of every attached part, ``folded.safetensors`` or ``PART.safetensors``."""
    parts = attached_parts(model).items()
    return [save_folded(part, Path(folder) / f"{path or 'folded'}.safetensors") for path, part in parts]
