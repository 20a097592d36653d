"""Image folders of ImageNet's kind, made from real photographs in seconds, for benchmarks/loader.py."""

import multiprocessing
import os
import pathlib
import time

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

SIZES = [(500, 375)] * 5 + [(375, 500)] * 2 + [(500, 333)] * 2 + [(400, 300)]  # about ImageNet's
QUALITY = 97  # which makes them about 89 kB


def make_some(root: pathlib.Path, photos: list[Image.Image], numbers: range, stored: int | None) -> int:
    """Files of these numbers; their bytes. Each is another part of a photograph, at another scale."""
    total = 0
    for number in numbers:
        chance = np.random.default_rng(number)
        photo = photos[number % len(photos)]
        size = (stored, stored) if stored else SIZES[number % len(SIZES)]
        share = chance.uniform(0.6, 1.0)
        width, height = int(photo.width * share), int(photo.height * share)
        left, top = chance.integers(photo.width - width + 1), chance.integers(photo.height - height + 1)
        part = photo.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
        path = root / "train" / f"{number % 1000:04}" / f"{number}.jpg"
        part.save(path, quality=QUALITY)
        total += path.stat().st_size
        if number < 1000:
            os.link(path, root / "val" / path.parent.name / path.name)
    return total


def make_images(root: pathlib.Path, count: int, stored: int | None = None) -> dict[str, float]:
    """So many files in 1000 classes, by all processors, before CUDA is started. `stored`: their side, for squares."""
    start = time.perf_counter()
    for split in ("train", "val"):
        for label in range(1000):
            (root / split / f"{label:04}").mkdir(parents=True)
    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    processes = os.cpu_count() or 1
    shares = [(root, photos, range(first, count, processes), stored) for first in range(processes)]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        total = sum(pool.starmap(make_some, shares))
    return {"files": count, "mean_kB": total / count / 1e3, "seconds": time.perf_counter() - start}
