"""CIFAR-10 and CIFAR-100, in either layout, verified before anything in them is believed."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from timestepper.data.cifar_packed import PACKED, PackedCifar
from timestepper.data.cifar_pickled import PICKLED, PickledCifar
from timestepper.data.dataset import HOW_TO_GIVE_A_ROOT, Dataset, in_memory
from timestepper.errors import DataError
from timestepper.files import open_own

Layout = PickledCifar | PackedCifar

NORMALISATION = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
"""Mean and standard deviation of the training images, in [0, 1]."""


def open_cifar(name: str, roots: Sequence[Path], download: bool = False) -> Dataset:
    """`download` fetches the published archive into the first root if no root holds the data set."""
    if download and not is_complete(name, roots):
        with one_at_a_time(roots[0]):
            if not is_complete(name, roots):  # another process may have fetched it while this one waited
                fetch(PICKLED[name], roots[0])
    layout, folder = locate(name, roots)
    return read_cifar(name, layout, folder)


def read_cifar(name: str, layout: Layout, folder: Path) -> Dataset:
    names = layout.read_names(folder)
    halves = (layout.read_half(folder, train) for train in (True, False))
    return in_memory(name, halves, names, *NORMALISATION[name])


def locate(name: str, roots: Sequence[Path]) -> tuple[Layout, Path]:
    """The first folder that holds some of the files: an incomplete copy is reported, not passed over."""
    for place in places(name, roots):
        return place
    other = "cifar10" if name == "cifar100" else "cifar100"
    found = [f"{folder} holds {other}" for _, folder in places(other, roots)]
    raise DataError(
        f"{name} not found in {', '.join(map(str, roots))}: expected {PICKLED[name].folder}/ or {PACKED[name].folder}/ "
        f"there, found {'; '.join(found) if found else 'neither'}; give its root {HOW_TO_GIVE_A_ROOT}, set "
        f"TIMESTEPPER_DATA or allow the download (data.download=true in a recipe; file {PICKLED[name].url}, md5 "
        f"{PICKLED[name].archive_md5})"
    )


def places(name: str, roots: Sequence[Path]) -> Iterator[tuple[Layout, Path]]:
    for root in roots:
        for layout in (PICKLED[name], PACKED[name]):
            for folder in (root / layout.folder, root):
                if any((folder / file).is_file() for file in layout.files):
                    yield layout, folder


def is_complete(name: str, roots: Sequence[Path]) -> bool:
    try:
        layout, folder = locate(name, roots)
    except DataError:
        return False
    return all((folder / file).is_file() for file in layout.files)


@contextmanager
def one_at_a_time(root: Path) -> Iterator[None]:
    """Every process of a job opens the data set, and several writing one archive would damage it."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = open_own(root / ".download.lock")
    except OSError as error:
        raise DataError(f"{root}: cannot download into it ({error.strerror}); give another root") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(layout: PickledCifar, root: Path) -> None:
    """By torchvision's downloader, which verifies the archive; its data set class would unpickle unrestricted."""
    from torchvision.datasets.utils import download_and_extract_archive

    try:
        download_and_extract_archive(layout.url, str(root), md5=layout.archive_md5)
    except Exception as error:
        raise DataError(
            f"{layout.url}: download into {root} failed ({error}; expected md5 {layout.archive_md5}); "
            f"fetch it another way and unpack it there"
        ) from error


def check_cifar(name: str, roots: Sequence[Path]) -> list[tuple[str, str]]:
    """Every file that is missing or bad, with the reason."""
    layout, folder = locate(name, roots)
    bad = []
    for file in layout.files:
        try:
            layout.read_bytes(folder / file)
        except DataError as error:
            bad.append((str(folder / file), str(error).removeprefix(f"{folder / file}: ")))
    return bad
