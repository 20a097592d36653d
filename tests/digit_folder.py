"""Real image files for tests: scikit-learn's digits written as an image folder of PNGs."""

from pathlib import Path

from PIL import Image

from timestepper.data import ArrayImages, open_dataset


def write_digit_folder(root: Path, per_class: int = 20, classes: int = 10) -> Path:
    """`per_class` grey 8 x 8 PNGs in each root/train/<digit>/, half as many in each root/val/<digit>/; returns root."""
    digits = open_dataset("digits")
    for split, half, many in (("train", digits.train, per_class), ("val", digits.test, per_class // 2)):
        assert isinstance(half, ArrayImages)
        for label in range(classes):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for number, image in enumerate(half.images[half.labels == label][:many]):
                Image.fromarray(image[:, :, 0].numpy()).save(folder / f"{number:03}.png")
    return root
