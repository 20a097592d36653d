"""A function of tensors, recorded once as a CUDA graph and replayed: one launch in place of thousands."""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from timestepper.errors import first_line
from timestepper.terminal import tell

_WARMUP = 3


class Graphed:
    """Calls a function as it is a few times, then records it and from then on replays the record.

    The first calls are ordinary ones, so nothing has to be undone, and they let cuDNN, the compiler and the allocator
    settle. They run on the stream that is recorded: backward remembers the stream that it ran on first, and libraries
    keep scratch memory per stream, so that graphs recorded on one stream must not be replayed on two at a time.
    The function must use only its inputs and memory that stays (parameters, buffers, optimiser state), and must not
    ask the host. Inputs of other shapes run as they are. Everything is ordered with the caller's current stream.
    Random numbers are those that the function would draw by itself.
    """

    def __init__(self, function: Callable[..., Tensor], tell: Callable[[str], None] = tell):
        self._function = function
        self._tell = tell
        self._calls = 0
        self._failed = False
        self._stream: torch.cuda.Stream | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, ...] = ()
        self._output: Tensor | None = None
        self._generator: torch.Generator | None = None

    @property
    def recorded(self) -> bool:
        """Whether calls are replayed."""
        return self._graph is not None

    def __call__(self, *inputs: Tensor) -> Tensor:
        with self._own_generator():
            return self._call(inputs)

    def _call(self, inputs: tuple[Tensor, ...]) -> Tensor:
        if self._graph is None and not self._failed:
            if self._calls < _WARMUP:
                self._calls += 1
                return self._aside(inputs)
            self._record(inputs)
        if self._graph is None or self._output is None or not self._fits(inputs):
            return self._function(*inputs)
        for buffer, value in zip(self._inputs, inputs, strict=True):
            buffer.copy_(value, non_blocking=True)
        self._graph.replay()
        return self._output

    @contextlib.contextmanager
    def _own_generator(self) -> Iterator[None]:
        """In the place of the device's, from where that stands: a replay puts its seed into memory that all graphs of
        one generator read, and another stream may still be replaying."""
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        shared = default.graphsafe_get_state()
        own = self._generator = self._generator or default.clone_state()
        own.manual_seed(shared.initial_seed())
        own.set_offset(shared.get_offset())
        default.graphsafe_set_state(own)
        try:
            yield
        finally:
            default.graphsafe_set_state(shared)
            shared.set_offset(own.get_offset())

    def _aside(self, inputs: tuple[Tensor, ...]) -> Tensor:
        current = torch.cuda.current_stream()
        if self._stream is None:  # the default stream cannot be recorded
            self._stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            output = self._function(*inputs)
        current.wait_stream(self._stream)
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self._inputs = tuple(value.clone(memory_format=torch.preserve_format) for value in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._output = self._function(*self._inputs)
        except RuntimeError as error:
            self._failed = True
            self._tell(f"no CUDA graph: {first_line(error)}; running step by step")
            return
        self._graph = graph

    def _fits(self, inputs: tuple[Tensor, ...]) -> bool:
        return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(self._inputs, inputs, strict=True))
