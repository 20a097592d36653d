"""Data sets by name: open one, look for every bad file in one, load its images."""

import os
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch

from timestepper.data.augment import Augment, resolve
from timestepper.data.dataset import HOW_TO_GIVE_A_ROOT, ArrayImages, Dataset, FolderImages, Images
from timestepper.data.loading import Loader, ResidentLoader
from timestepper.data.order import Plan
from timestepper.errors import DataError, UnknownNameError, naming_missing_packages

NAMES = ("digits", "cifar10", "cifar100", "imagenet", "folder")
"""The data sets that `open_dataset` knows."""

DECODERS = ("cpu", "gpu", "auto")
"""Where JPEG files are decoded; auto takes the GPU where it can."""


@naming_missing_packages()
def open_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    download: bool = False,
    size: int = 224,
    resize: int | None = None,
) -> Dataset:
    """The data set of that name, verified.

    Without a root, $TIMESTEPPER_DATA, ./data and ../shared/data are searched in this order (an image folder of one's
    own has no default). `download` is for CIFAR, `size` and `resize` are for image folders.
    """
    if name not in NAMES:
        raise UnknownNameError(f"no data set is called {name!r}; there are {', '.join(NAMES)}")
    if name == "digits":
        from timestepper.data.digits import open_digits

        return open_digits()
    if name in ("cifar10", "cifar100"):
        from timestepper.data.cifar import open_cifar

        return open_cifar(name, search_roots(root), download)
    from timestepper.data.folder import open_folder

    return open_folder(name, folder_root(name, root), size, resize)


def search_roots(root: str | os.PathLike[str] | None) -> list[Path]:
    if root is not None:
        return [Path(root)]
    chosen = os.environ.get("TIMESTEPPER_DATA")
    return [*([Path(chosen)] if chosen else []), Path("data"), Path("../shared/data")]


def folder_root(name: str, root: str | os.PathLike[str] | None) -> Path:
    if root is not None:
        return Path(root)
    if name == "folder":
        raise DataError(
            f"data set 'folder' needs a root {HOW_TO_GIVE_A_ROOT}: the folder that holds train/<class>/ and "
            "val/<class>/"
        )
    places = [place / name for place in search_roots(None)]
    for place in places:
        if place.is_dir():
            return place
    raise DataError(
        f"{name} not found as any of {', '.join(map(str, places))}; give its root {HOW_TO_GIVE_A_ROOT} or set "
        "TIMESTEPPER_DATA"
    )


@naming_missing_packages()
def loader(
    images: Images,
    *,
    batch_size: int,
    seed: int,
    training: bool,
    rank: int = 0,
    world: int = 1,
    device: torch.device | str = "cpu",
    workers: int = 0,
    decode: str = "cpu",
    augment: Augment | str = "none",
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Loader:
    """A loader of global batches of `batch_size`, shared equally by `world` processes.

    `workers` read image files in parallel (images in memory need none) and never change a batch. `decode` says what
    decodes them: `cpu`, `gpu`, or `auto`, the GPU if `device` is one that can and most of them are JPEGs; their pixels
    differ by a few levels. Evaluation (`training=False`) does not augment.
    """
    if decode not in DECODERS:
        raise UnknownNameError(f"no decoder is called {decode!r}; there are {', '.join(DECODERS)}")
    plan = Plan(len(images), batch_size, seed, training, rank, world)
    options = (plan, resolve(augment), torch.device(device), memory_format)
    if isinstance(images, ArrayImages):
        return ResidentLoader(images, *options)
    from timestepper.data.streamed import StreamedLoader

    return StreamedLoader(images, *options, workers=workers, decode=decode)


@naming_missing_packages()
def check(
    name: str,
    root: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[str, str]]:
    """Every bad file as (path, reason), in data order; `progress(done, total)` is called as image files are decoded.

    A mistake in the layout, which leaves nothing to check, is raised as it is when the data set is opened.
    """
    if name in ("cifar10", "cifar100"):
        from timestepper.data.cifar import check_cifar

        return check_cifar(name, search_roots(root))
    dataset = open_dataset(name, root)
    paths = [path for half in (dataset.train, dataset.test) if isinstance(half, FolderImages) for path in half.paths]
    if not paths:  # images in memory, which opening has verified
        return []
    from timestepper.data.decode import decode_rgb, reason, refuse_bombs

    def fault(path: str) -> str | None:
        try:
            decode_rgb(path)
        except Exception as error:
            return reason(error)
        return None

    refuse_bombs()
    bad = []
    with ThreadPool(os.cpu_count()) as pool:  # threads suffice: Pillow decodes outside the interpreter lock
        for done, (path, why) in enumerate(zip(paths, pool.imap(fault, paths, chunksize=16), strict=True), start=1):
            if why is not None:
                bad.append((path, why))
            if progress is not None:
                progress(done, len(paths))
    return bad
