"""Tensors in safetensors files, each with a sha256 file beside it: safetensors itself does not notice a flipped bit."""

import hashlib
from pathlib import Path
from shlex import quote

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from timestepper.errors import CheckpointError, MismatchError, first_line
from timestepper.files import read_file, write_atomic


def load_exactly(module: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Like ``load_state_dict(strict=True)``, but names every tensor that does not fit and loads nothing in part."""
    wanted = module.state_dict()
    tensors = dict(sorted(tensors.items()))  # a safetensors file gives them in any order, and eight are named
    problems = [f"{name} is missing" for name in wanted if name not in tensors]
    problems += [f"{name} is not part of it" for name in tensors if name not in wanted]
    problems += [
        f"{name} is {tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
        for name, tensor in tensors.items()
        if name in wanted and tensor.shape != wanted[name].shape
    ]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise MismatchError(f"{path} does not fit {type(module).__name__}: {'; '.join(problems[:8])}{more}")
    module.load_state_dict(tensors)


def write_tensors(tensors: dict[str, Tensor], path: Path) -> Path:
    """Write a safetensors file and its sha256, each whole or not at all; the sum goes last, so it vouches for the file.

    An older file keeps its sum until it is replaced: where there is no space for the new one, it stays good.
    """
    data = save_tensors(_apart(tensors))
    write_atomic(path, data)
    write_atomic(_checksum(path), f"{hashlib.sha256(data).hexdigest()}  {path.name}\n".encode())
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file after its sha256 was verified."""
    data, _ = _verified(path)
    try:
        return load_tensors(data)
    except Exception as error:
        raise CheckpointError(f"{path}: is no safetensors file: {first_line(error)}; export it again") from None


def verify(path: Path) -> str:
    """The sha256 of a file, which must be the one in the .sha256 file beside it.

    A file without one is refused, not trusted: an export that was cut short leaves it so.
    """
    return _verified(path)[1]


def _verified(path: Path) -> tuple[bytes, str]:
    """What is in a file, read once, so that what is used is what was verified; and its sha256."""
    try:
        data = read_file(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}; check its name") from None
    found, beside = hashlib.sha256(data).hexdigest(), _checksum(path)
    try:
        expected = read_file(beside).decode().split()[0]
    except (OSError, IndexError, UnicodeDecodeError) as error:
        reason = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else "holds no sha256"
        raise CheckpointError(
            f"{path}: cannot be verified: {beside} {reason}; export it again, or, if you trust the file as it is, "
            f"make the sum yourself: sha256sum {quote(str(path))} > {quote(str(beside))}"
        ) from None
    if found != expected:
        raise CheckpointError(f"{path}: sha256 is {found}, expected {expected}; the file is damaged, export it again")
    return data, found


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On the CPU, no two in the same memory, which safetensors refuses: a block in two places has two names."""
    apart: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        memory = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    return apart


def _checksum(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")
