"""Small results from the device to the host, a fixed number of steps late, so that nobody waits for the device."""

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Mailbox:
    """A queue of small float tensors on their way to the host.

    ``take`` hands out what is more than ``lag`` letters old; every process that posts at the same steps takes at the
    same steps, so all of them see the same things at the same time. On a CPU nothing is late.
    """

    def __init__(self, device: torch.device, lag: int):
        self._lag = lag if device.type == "cuda" else 0
        self._waiting: deque[tuple[Any, Tensor, torch.cuda.Event | None]] = deque()
        self._free: list[Tensor] = []

    def post(self, tag: Any, values: Tensor) -> None:
        """Send values on their way; they may change on the device right after."""
        if values.device.type != "cuda":
            self._waiting.append((tag, values.clone(), None))
            return
        if not self._free:  # all at once: to get pinned memory, the host may have to wait for the device
            slots = torch.empty(self._lag + 2, *values.shape, dtype=values.dtype, pin_memory=True)
            self._free = list(slots.unbind())
        slot = self._free.pop()
        slot.copy_(values, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._waiting.append((tag, slot, event))

    def awaited(self, everything: bool = False) -> torch.cuda.Event | None:
        """What the device must reach for ``take`` not to wait; None where it would not."""
        if not self._waiting or not (everything or len(self._waiting) > self._lag):
            return None
        event = self._waiting[-1 if everything else 0][2]
        return None if event is None or event.query() else event

    def take(self, everything: bool = False) -> Iterator[tuple[Any, list]]:
        """What has come in, oldest first; ``everything`` waits for all."""
        while self._waiting and (everything or len(self._waiting) > self._lag):
            tag, slot, event = self._waiting.popleft()
            if event is not None:
                event.synchronize()
                self._free.append(slot)
            yield tag, slot.tolist()
