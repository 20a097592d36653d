"""What a worker process does: samples in, pixels into the memory that it shares with the trainer. Needs no torch."""

import mmap
import os
from multiprocessing.connection import Connection

import numpy as np

from timestepper.data.decode import read_sample, refuse_bombs
from timestepper.data.windows import View, Windows
from timestepper.errors import DataError


def main(trainer: int, channel: int, memory: int, view: tuple[int, int, bool, bool]) -> None:
    """Serve the process `trainer` through two file descriptors until it closes them or dies.

    The trainer started this process with all signals blocked that are sent to its whole group: it still needs images
    while it saves and stops.
    """
    refuse_bombs()
    jobs = Connection(channel)
    size = view[0]
    pixels = np.frombuffer(mmap.mmap(memory, 0), np.uint8).reshape(-1, size, size, 3)
    windows = Windows(View(*view))
    try:
        while True:
            while not jobs.poll(1.0):  # another process of the trainer's may keep the channel open after its death
                if os.getppid() != trainer:
                    return
            place, samples = jobs.recv()
            jobs.send(serve(place, samples, pixels, windows))
    except (EOFError, OSError):
        return


def serve(place: int, samples: list[tuple[str, int]], pixels: np.ndarray, windows: Windows) -> tuple[int, str | None]:
    """Fill the places from `place` on; what is wrong with the first file that cannot be read."""
    for number, (path, seed) in enumerate(samples):
        try:
            pixels[place + number] = read_sample(path, seed, windows)
        except DataError as error:
            return place + number, str(error)
    return place, None
