"""Image folders: train/<class>/* and val/<class>/*, ImageNet among them. Mistakes in the layout are found at once."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import torch

from timestepper.data.dataset import Dataset, FolderImages
from timestepper.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet, in [0, 1]; used for any image folder, as pretrained networks expect."""

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif")
EXPECTED = "expected train/<class>/<image> and val/<class>/<image>"
SPLITS = ("train", "val")

Files = dict[str, list[tuple[str, int]]]
"""By class, the images below its folder and their sizes, in torchvision's order."""


def open_folder(name: str, root: Path, size: int = 224, resize: int | None = None) -> Dataset:
    """`resize` (shorter side before the test crop) keeps the usual 256 / 224 of `size` unless given."""
    train, val = (scan(folder) for folder in split_folders(root))
    compare_classes(root, train, val)
    if name == "imagenet" and len(train) != 1000:
        raise DataError(f"{root}: {len(train)} classes, but imagenet has 1000; for another image folder use 'folder'")

    def half(split: str, classes: Files) -> FolderImages:
        counts = torch.tensor([len(files) for files in classes.values()])
        return FolderImages(
            paths=tuple(
                os.path.join(root, split, label, file) for label, files in classes.items() for file, _ in files
            ),
            labels=torch.repeat_interleave(torch.arange(len(classes)), counts),
            classes=len(classes),
            mean=MEAN,
            std=STD,
            size=size,
            resize=round(size * 256 / 224) if resize is None else resize,
        )

    total, bytes_of_all = hashlib.sha256(), 0
    for split, classes in zip(SPLITS, (train, val), strict=True):
        for label, files in classes.items():
            for file, bytes_of_it in files:
                total.update(os.fsencode(f"{split}/{label}/{file}\n{bytes_of_it}\n"))
                bytes_of_all += bytes_of_it
    halves = half("train", train), half("val", val)
    facts = {
        "classes": len(train),
        "images to train on": len(halves[0]),
        "images to test on": len(halves[1]),
        "bytes": bytes_of_all,
        "names and sizes": total.hexdigest()[:12],
    }
    return Dataset(name, *halves, tuple(train), total.hexdigest(), facts)


def split_folders(root: Path) -> tuple[Path, Path]:
    """The train and val folders, or an error that says what lies there and what was probably meant."""
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; {EXPECTED} in it")
    train, val = (root / split for split in SPLITS)
    if train.is_dir() and val.is_dir():
        return train, val
    children = names_in(root, is_folder)
    found = ", ".join(children[:5]) + (", ..." if len(children) > 5 else "") if children else "no folder at all"
    inside = [child for child in children if all((root / child / split).is_dir() for split in SPLITS)]
    if inside:
        hint = f"did you mean {root / inside[0]}?"
    elif root.name in SPLITS:
        hint = f"give the folder above, {root.parent}"
    elif train.is_dir() or val.is_dir():
        hint = f"{'val' if train.is_dir() else 'train'}/ is missing"
    else:
        hint = "give the folder that holds train/ and val/"
    raise DataError(f"{root}: {EXPECTED}, found {found}; {hint}")


def entries_of(folder: Path) -> list[os.DirEntry]:
    """All but hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder}: cannot be listed ({error.strerror}); check its permissions") from error


def names_in(folder: Path, wanted: Callable[[os.DirEntry], bool]) -> list[str]:
    return sorted(entry.name for entry in entries_of(folder) if wanted(entry))


def is_image(entry: os.DirEntry) -> bool:
    return entry.name.lower().endswith(EXTENSIONS)


def is_folder(entry: os.DirEntry) -> bool:
    return stat.S_ISDIR(_about(entry)[0])


def _about(entry: os.DirEntry) -> tuple[int, int, tuple[int, int]]:
    """Mode, size and number; zeros for a link to nothing: it is named once it is to be read, as all bad images are."""
    try:
        about = entry.stat()
    except OSError:
        return 0, 0, (0, 0)
    return about.st_mode, about.st_size, (about.st_dev, about.st_ino)


def images_below(folder: Path) -> list[tuple[str, int]]:
    """Name and size of every image in a folder and the folders in it, ordered as torchvision does."""
    found: list[tuple[str, str, int]] = []
    top = folder.stat()
    waiting: list[tuple[str, tuple[object, ...]]] = [("", ((top.st_dev, top.st_ino),))]
    while waiting:
        below, above = waiting.pop()
        for entry in entries_of(folder / below):
            mode, size, number = _about(entry)
            if stat.S_ISDIR(mode):
                if number in above:
                    raise DataError(f"{entry.path}: a link to a folder that it lies in; remove it")
                waiting.append((os.path.join(below, entry.name), (*above, number)))
            elif is_image(entry):
                found.append((below, entry.name, size if stat.S_ISREG(mode) else -1))
    return [(os.path.join(below, name), size) for below, name, size in sorted(found)]


def scan(split: Path) -> Files:
    """The label of a class is its place in the sorted names, as in torchvision."""
    classes = {name: images_below(split / name) for name in names_in(split, is_folder)}
    if not classes:
        loose = len(names_in(split, is_image))
        raise DataError(f"{split}: {EXPECTED}, found no class folder and {loose} images; make one folder per class")
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise DataError(
            f"{split}: no images in {len(empty)} of {len(classes)} classes: {listed(empty)}; fill or remove them "
            f"(names of images end in {', '.join(EXTENSIONS)})"
        )
    return classes


def compare_classes(root: Path, train: Files, val: Files) -> None:
    only_train, only_val = sorted(train.keys() - val.keys()), sorted(val.keys() - train.keys())
    if only_train or only_val:
        raise DataError(
            f"{root}: train and val must have the same classes, found {len(train)} and {len(val)}; "
            f"only in train: {listed(only_train)}; only in val: {listed(only_val)}"
        )
    if len(train) < 2:
        raise DataError(f"{root}: found 1 class ({listed(list(train))}), expected at least 2 to tell apart")


def listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"
