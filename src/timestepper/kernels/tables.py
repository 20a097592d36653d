"""What is known of tensors that stay where they are: whether kernels can take them, and tables that say where they are.

A training loop asks the same of the same tensors at every step: it should cost no more than a look at each of them.
"""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

_MOST = 64
_captured: list[Tensor] = []  # which a CUDA graph reads at every replay: these must live on


class Known:
    """Answers about some tensors, and tables on the device that tell kernels where they are."""

    def __init__(self) -> None:
        self._answers: dict[Hashable, Any] = {}

    def once(self, question: Hashable, ask: Callable[[], Any]) -> Any:
        if question not in self._answers:
            self._answers[question] = ask()
        return self._answers[question]

    def table(
        self, name: Hashable, build: Callable[[], tuple[Sequence, tuple]], device: torch.device
    ) -> tuple[Tensor, tuple]:
        """A table, and what else follows from the tensors: ``build`` gives its rows and the rest."""
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if name not in self._answers:
            rows, rest = build()
            if capturing:
                return _copied(rows, device), rest
            self._answers[name] = _made_aside(rows, device), rest
        found = self._answers[name]
        if capturing:
            _captured.append(found[0])
        return found


def known(tensors: Sequence[Tensor]) -> Known:
    """By address, type, shape and strides: for other tensors in the same places the same holds."""
    looks = (Tensor.data_ptr, attrgetter("dtype"), Tensor.size, Tensor.stride)
    return _known(tensors[0].device, *(tuple(map(look, tensors)) for look in looks))


@lru_cache(maxsize=_MOST)
def _known(*looked: Hashable) -> Known:
    return Known()


def _made_aside(rows: Sequence, device: torch.device) -> Tensor:
    """By a thread of its own, which waits until it is there: any stream may read it.

    The memory that the calling thread is given may be that of a CUDA graph that is warming up, and be gone with it.
    """
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(lambda: torch.tensor(rows, dtype=torch.int64).to(device)).result()


def _copied(rows: Sequence, device: torch.device) -> Tensor:
    """As part of the graph that is being recorded, from memory that lives on."""
    host = torch.tensor(rows, dtype=torch.int64, device="cpu").pin_memory()
    _captured.append(host)
    return host.to(device, non_blocking=True)
