"""Image files decoded and cut by the GPU: worker processes read them, and only their bytes cross the bus."""

import io
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from timestepper.data.dataset import FolderImages
from timestepper.data.decode import read_sample
from timestepper.data.windows import View, Window, Windows, cut
from timestepper.data.worker import Memory
from timestepper.data.workers import AHEAD, Sample, Workers
from timestepper.errors import DataError, first_line
from timestepper.terminal import tell

ROOM = 1 << 20
"""Bytes of the largest file that the GPU decodes."""

_LEVELS = 8  # that a smooth image may differ by from the CPU's
_PIXELS = 1 << 26  # decoded at a time, at three bytes each: a whole batch of ImageNet's


class GpuReader:
    """Batches on the device, a few ahead of the trainer, by one thread that is nearly always in torchvision's decoder.

    What the GPU's decoder does not read as the CPU does (progressive, grey and CMYK files, other formats) the workers
    decode, and what it fails on, the thread. On a CPU all of it runs too.
    """

    def __init__(self, view: View, device: torch.device):
        self.view, self.device = view, device
        self.decode = decoder(device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def batches(self, workers: Workers, jobs: Iterable[Sequence[Sample]]) -> Generator[Tensor, None, None]:
        """The squares of each job in order (uint8, NHWC), finished."""
        made = self._made(workers, jobs)
        thread = ThreadPoolExecutor(1)
        try:
            waiting = deque(thread.submit(next, made, None) for _ in range(AHEAD))
            while (squares := waiting.popleft().result()) is not None:
                if squares.is_cuda:  # the trainer's stream reads what was allocated on ours
                    squares.record_stream(torch.cuda.current_stream(self.device))
                yield squares
                waiting.append(thread.submit(next, made, None))
        finally:
            thread.shutdown(cancel_futures=True)
            made.close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _made(self, workers: Workers, jobs: Iterable[Sequence[Sample]]) -> Generator[Tensor, None, None]:
        with closing(workers.batches(jobs)) as batches:
            for job, places in batches:
                with torch.cuda.stream(self.stream):
                    squares = self._make(job, places, workers.memory)
                yield squares

    def _make(self, job: Sequence[Sample], places: slice, memory: Memory) -> Tensor:
        rows, pixels = memory.rows[places], memory.pixels[places]
        squares = torch.empty(pixels.shape, dtype=torch.uint8, device=self.device)
        files = np.flatnonzero(rows["bytes"])
        area = np.cumsum(rows["height"][files] * rows["width"][files])  # large photographs would fill the device
        for slots in np.split(files, np.flatnonzero(np.diff(area // _PIXELS)) + 1):
            if len(slots) and not self._decode(rows[slots], memory.files, slots, squares):
                windows = Windows(self.view)
                for slot in slots.tolist():
                    sample: Sample = job[slot]
                    assert sample is not None
                    pixels[slot] = read_sample(*sample, windows)
                rows["bytes"][slots] = 0
        finished = np.flatnonzero(rows["bytes"] == 0)
        if len(finished):
            squares[torch.from_numpy(finished)] = torch.from_numpy(pixels[finished]).to(self.device)
        self._wait()
        return squares

    def _decode(self, rows: np.ndarray, files: np.ndarray, slots: np.ndarray, squares: Tensor) -> bool:
        """Whether the decoder could."""
        whole, ends = torch.from_numpy(files), rows["begin"] + rows["bytes"]
        parts = [whole[begin:end] for begin, end in zip(rows["begin"].tolist(), ends.tolist(), strict=True)]
        self._wait()
        try:
            images = self.decode(parts)
            if [image.shape for image in images] != [(3, *size) for size in rows[["height", "width"]].tolist()]:
                raise RuntimeError("an image has another size than its header says")
        except RuntimeError as error:
            tell_once(f"the JPEG decoder of {self.device} failed ({first_line(error)}): the CPU reads what it cannot")
            return False
        cut_all(images, rows["window"], slots, squares)
        return True

    def _wait(self) -> None:
        """The JPEG engines write at once, whatever waits in a stream: what we freed must have been read before that."""
        if self.stream is not None:
            self.stream.synchronize()


def cut_all(images: Sequence[Tensor], windows: ArrayLike, slots: ArrayLike, out: Tensor) -> None:
    """The window of each image (uint8, 3 x height x width) into its slot of `out`: by one kernel, or by Pillow."""
    if out.is_cuda:
        from timestepper.data.resample import launch

        return launch(images, windows, slots, out)
    for image, window, slot in zip(images, np.asarray(windows).tolist(), np.asarray(slots).tolist(), strict=True):
        shown = cut(Image.fromarray(image.permute(1, 2, 0).numpy()), Window(*window), out.shape[1])
        out[slot] = torch.from_numpy(np.array(shown))


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
        raise DataError(
            f"data.decode cannot be gpu on {device}: {reason}; set data.decode=cpu, with which a run goes on too"
        )
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
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # or what waits there loses memory to the decoder: see `GpuReader._wait`
        images = decoder(device)([torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)])
        cut_all(images, [windows.of(*ramp.size, seed=0)], [0], shown)
        expected = torch.from_numpy(read_sample("", 0, windows, file).copy())
        off = int((shown[0].cpu().int() - expected.int()).abs().max())
    except Exception as error:
        return first_line(error)
    return f"its pixels differ from the CPU's by up to {off} levels" if off > _LEVELS else ""


@cache
def tell_once(line: str) -> None:
    tell(line)
