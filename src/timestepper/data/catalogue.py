"""Data sets by name: open one, or look for every bad file in one."""

import os
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path

from timestepper.data.dataset import HOW_TO_GIVE_A_ROOT, Dataset, FolderImages
from timestepper.errors import DataError, UnknownNameError

NAMES = ("digits", "cifar10", "cifar100", "imagenet", "folder")
"""The data sets that `open_dataset` knows."""


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
    bad = []
    if isinstance(dataset.train, FolderImages) and isinstance(dataset.test, FolderImages):
        bad = undecodable(dataset.train.paths + dataset.test.paths, progress)
    return bad


def undecodable(paths: tuple[str, ...], progress: Callable[[int, int], None] | None) -> list[tuple[str, str]]:
    """Threads suffice: Pillow decodes outside the interpreter lock."""
    from timestepper.data.decode import decode_rgb, reason, refuse_bombs

    def fault(path: str) -> str | None:
        try:
            decode_rgb(path)
        except Exception as error:
            return reason(error)
        return None

    refuse_bombs()
    bad = []
    with ThreadPool(os.cpu_count()) as pool:
        for done, (path, why) in enumerate(zip(paths, pool.imap(fault, paths, chunksize=16), strict=True), start=1):
            if why is not None:
                bad.append((path, why))
            if progress is not None:
                progress(done, len(paths))
    return bad
