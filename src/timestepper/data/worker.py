"""What a worker process does: samples in, pixels or files into the memory that it shares with the trainer. No torch."""

import io
import mmap
import os
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from timestepper.data.decode import bad_image, read_sample, refuse_bombs
from timestepper.data.jpeg import baseline_size
from timestepper.data.windows import View, Window, Windows
from timestepper.errors import DataError
from timestepper.files import read_file

_FIELDS = [(name, np.int64) for name in ("begin", "bytes", "height", "width")]
_ROW = np.dtype([*_FIELDS, ("window", np.int64, len(Window._fields))])


class Memory:
    """What trainer and workers share, a place for each sample: its pixels, or its file where a GPU is to decode that.

    `rows`: where the bytes of a file lie in `files`, how many they are (0: its pixels are there), the size of its image
    and what to cut out of that. `room`: the bytes of the largest file that is left to the GPU; what no file fills is
    never touched, and so takes no memory.
    """

    def __init__(self, descriptor: int, size: int, room: int):
        self.room = room
        whole = np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)
        places = len(whole) // self.bytes_each(size, room)
        rows, pixels = places * _ROW.itemsize, places * size * size * 3
        self.rows = whole[:rows].view(_ROW)
        self.pixels = whole[rows : rows + pixels].reshape(places, size, size, 3)
        self.files = whole[rows + pixels :]

    @staticmethod
    def bytes_each(size: int, room: int) -> int:
        return _ROW.itemsize + size * size * 3 + room


def main(trainer: int, channel: int, memory: int, room: int, view: tuple[int, int, bool, bool]) -> None:
    """Serve the process `trainer` through two file descriptors until it closes them or dies.

    The trainer started this process with all signals blocked that are sent to its whole group: it still needs images
    while it saves and stops.
    """
    refuse_bombs()
    jobs = Connection(channel)
    shared = Memory(memory, view[0], room)
    windows = Windows(View(*view))
    try:
        while True:
            while not jobs.poll(1.0):  # another process of the trainer's may keep the channel open after its death
                if os.getppid() != trainer:
                    return
            place, samples = jobs.recv()
            jobs.send(serve(place, samples, shared, windows))
    except (EOFError, OSError):
        return


def serve(first: int, samples: list[tuple[str, int]], memory: Memory, windows: Windows) -> tuple[int, str | None]:
    """Fill the places from `first` on; what is wrong with the first file that cannot be read."""
    begin = first * memory.room  # files lie one behind another
    for place, (path, seed) in enumerate(samples, first):
        try:
            begin += fill(place, path, seed, memory, windows, begin)
        except DataError as error:
            return place, str(error)
    return first, None


def fill(place: int, path: str, seed: int, memory: Memory, windows: Windows, begin: int) -> int:
    """One place; the bytes of its file that were left to the GPU."""
    if not memory.room:
        memory.pixels[place] = read_sample(path, seed, windows)
        return 0
    try:
        data = read_file(Path(path))
    except OSError as error:
        raise bad_image(path, error) from error
    size = baseline_size(data) if len(data) <= memory.room else None
    if size is None:
        memory.rows[place]["bytes"] = 0
        memory.pixels[place] = read_sample(path, seed, windows, io.BytesIO(data))
        return 0
    memory.files[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    memory.rows[place] = begin, len(data), size[1], size[0], windows.of(*size, seed)
    return len(data)
