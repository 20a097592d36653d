"""Image files decoded and cut by the GPU: threads read them, and only their bytes cross the bus."""

import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from timestepper.data.dataset import FolderImages
from timestepper.data.decode import bad_image, read_sample
from timestepper.data.jpeg import baseline_size
from timestepper.data.windows import View, Window, Windows, cut
from timestepper.data.workers import AHEAD, Sample
from timestepper.errors import DataError, first_line
from timestepper.terminal import tell

_SHARE = 16  # files that a thread reads at a time
_THREADS = 4  # at least: they wait for the disk most of the time
_LEVELS = 8  # that a smooth image may differ by from the CPU's
_PIXELS = 1 << 26  # decoded at a time, at three bytes each: a whole batch of ImageNet's


class File(NamedTuple):
    """A file that was read: its bytes and what to cut where the GPU decodes it, else its finished pixels."""

    slot: int
    path: str
    seed: int
    data: Tensor
    shape: tuple[int, int, int] | None = None
    window: Window | None = None


class GpuReader:
    """Batches on the device, a few ahead of the trainer and on a stream of their own.

    What the GPU's decoder does not read as the CPU does (progressive and CMYK files, other formats), and what it fails
    on, is decoded by the threads. On a CPU all of it runs too, in one stream.
    """

    def __init__(self, view: View, normalise: Callable[[Tensor], Tensor], device: torch.device, threads: int):
        self.view, self.normalise, self.device = view, normalise, device
        self.threads = max(threads, _THREADS)
        self.decode = decoder(device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._squares: list[Tensor | None] = [None] * AHEAD  # used in turn; each is free again after its event
        self._free: list[torch.cuda.Event | None] = [None] * AHEAD
        self._decoded: list[Tensor] = []  # what the last kernel may still be reading
        self._cut: torch.cuda.Event | None = None  # when it has read them

    def batches(self, jobs: Iterable[Sequence[Sample]]) -> Generator[Tensor, None, None]:
        """The images of each job in order, normalised."""
        readers, decoding = ThreadPoolExecutor(self.threads), ThreadPoolExecutor(1)
        waiting: deque[Future[tuple[int, torch.cuda.Event | None]]] = deque()
        try:
            for number, job in enumerate(jobs):
                if number >= AHEAD:
                    yield self._take(*waiting.popleft().result())
                parts = [readers.submit(self._read, at, job[at : at + _SHARE]) for at in range(0, len(job), _SHARE)]
                waiting.append(decoding.submit(self._make, number % AHEAD, len(job), parts))
            while waiting:
                yield self._take(*waiting.popleft().result())
        finally:
            for pool in (decoding, readers):
                pool.shutdown(cancel_futures=True)

    def _take(self, number: int, ready: torch.cuda.Event | None) -> Tensor:
        """Normalise a finished batch on the trainer's stream, after which its memory is free."""
        squares = self._squares[number]
        assert squares is not None
        if ready is None:
            return self.normalise(squares)
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(ready)
        images = self.normalise(squares)
        self._free[number] = stream.record_event()
        return images

    # -- in the reading threads ----------------------------------------------------------------------------------------

    def _read(self, first: int, samples: Sequence[Sample]) -> list[File]:
        windows = Windows(self.view)
        return [
            self._read_one(slot, *sample, windows) for slot, sample in enumerate(samples, first) if sample is not None
        ]

    def _read_one(self, slot: int, path: str, seed: int, windows: Windows) -> File:
        try:
            with open(path, "rb", buffering=0) as file:
                data = bytearray(os.fstat(file.fileno()).st_size)
                file.readinto(data)
        except OSError as error:
            raise bad_image(path, error) from error
        size = baseline_size(data)
        if size is None:
            return File(slot, path, seed, _pixels(path, seed, data, windows))
        shape = (3, size[1], size[0])
        return File(slot, path, seed, torch.frombuffer(data, dtype=torch.uint8), shape, windows.of(*size, seed))

    # -- in the decoding thread ----------------------------------------------------------------------------------------

    def _make(self, number: int, length: int, parts: list[Future[list[File]]]) -> tuple[int, torch.cuda.Event | None]:
        files = [file for part in parts for file in part.result()]
        with torch.cuda.stream(self.stream):
            squares = self._squares[number]
            if squares is None:
                squares = torch.empty(length, self.view.size, self.view.size, 3, dtype=torch.uint8, device=self.device)
                self._squares[number] = squares
            if (free := self._free[number]) is not None:
                free.wait(self.stream)
            squares[len(files) :] = 0  # the empty slots come last
            for group in _groups(file for file in files if file.window):
                self._decode(group, squares)
            for file in files:
                if not file.window:
                    squares[file.slot] = file.data.to(self.device)
            return number, None if self.stream is None else self.stream.record_event()

    def _decode(self, group: list[File], squares: Tensor) -> None:
        try:
            images = self.decode([file.data for file in group])
            if any(image.shape != file.shape for image, file in zip(images, group, strict=True)):
                raise RuntimeError("an image has another size than its header says")
        except RuntimeError as error:
            tell_once(f"the JPEG decoder of {self.device} failed ({first_line(error)}): the CPU reads what it cannot")
            windows = Windows(self.view)
            for file in group:
                squares[file.slot] = _pixels(file.path, file.seed, file.data.numpy().tobytes(), windows).to(self.device)
            return
        cut_all(images, [file.window for file in group if file.window], [file.slot for file in group], squares)
        # torchvision decodes on a stream that knows nothing of ours: the images that our kernel may still be reading
        # are kept until then, so that their memory is not decoded into.
        if self._cut is not None:
            self._cut.synchronize()
        self._decoded, self._cut = images, None if self.stream is None else self.stream.record_event()


def cut_all(images: list[Tensor], windows: list[Window], slots: list[int], out: Tensor) -> None:
    """The window of each image (uint8, 3 x height x width) into its slot of `out`: by one kernel, or by Pillow."""
    if out.is_cuda:
        from timestepper.data.resample import launch

        return launch(images, windows, slots, out)
    for image, window, slot in zip(images, windows, slots, strict=True):
        shown = cut(Image.fromarray(image.permute(1, 2, 0).numpy()), window, out.shape[1])
        out[slot] = torch.from_numpy(np.array(shown))


def _pixels(path: str, seed: int, data: bytes | bytearray, windows: Windows) -> Tensor:
    """One sample by the CPU, from its bytes."""
    return torch.from_numpy(read_sample(path, seed, windows, io.BytesIO(data)).copy())


def _groups(files: Iterable[File]) -> Iterator[list[File]]:
    """So many at a time that large photographs do not fill the device's memory."""
    group: list[File] = []
    area = 0
    for file in files:
        pixels = file.shape[1] * file.shape[2] if file.shape else 0
        if group and area + pixels > _PIXELS:
            yield group
            group, area = [], 0
        group.append(file)
        area += pixels
    if group:
        yield group


def decoder(device: torch.device) -> Callable[[list[Tensor]], list[Tensor]]:
    """JPEG bytes to RGB images on the device."""
    from torchvision.io import ImageReadMode, decode_jpeg

    return partial(decode_jpeg, mode=ImageReadMode.RGB, device=device)


def gpu_decodes(images: FolderImages, device: torch.device, decode: str) -> bool:
    """Whether a loader is to decode on the GPU; a wish that cannot be met is an error."""
    if decode == "cpu" or (decode == "auto" and (device.type != "cuda" or not mostly_jpeg(images))):
        return False
    reason = "the device is no GPU" if device.type != "cuda" else obstacle(device)
    if reason and decode == "gpu":
        raise DataError(f"data.decode cannot be gpu on {device}: {reason}; set data.decode=cpu")
    if reason:
        tell_once(f"images are decoded on the CPU: {reason}")
    return not reason


def mostly_jpeg(images: FolderImages) -> bool:
    """By their names; single files of other kinds are read as well."""
    return 2 * sum(path.lower().endswith((".jpg", ".jpeg")) for path in images.paths) > len(images.paths)


@cache
def obstacle(device: torch.device) -> str:
    """Why this GPU is not to decode JPEGs, found out with a smooth one; empty where it shows what the CPU shows."""
    ramp = Image.linear_gradient("L")
    file = io.BytesIO()
    Image.merge("RGB", (ramp, ramp.rotate(90), ramp.rotate(180))).save(file, "JPEG")
    windows = Windows(View(32, 32))
    shown = torch.zeros(1, 32, 32, 3, dtype=torch.uint8, device=device)
    try:
        images = decoder(device)([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])
        cut_all(images, [windows.of(*ramp.size, seed=0)], [0], shown)
        off = int((shown[0].cpu().int() - _pixels("", 0, file.getvalue(), windows).int()).abs().max())
    except Exception as error:
        return first_line(error)
    return f"its pixels differ from the CPU's by up to {off} levels" if off > _LEVELS else ""


@cache
def tell_once(line: str) -> None:
    tell(line)
