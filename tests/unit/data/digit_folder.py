"""Real image files for tests: scikit-learn's digits written as an image folder of PNGs."""

from pathlib import Path

from PIL import Image

from timestepper.data import ArrayImages, open_dataset


def write_digit_folder(root: Path, per_class: int, classes: int = 10) -> Path:
    """root/train/<digit>/ and root/val/<digit>/ with `per_class` 8 x 8 grey PNGs each (at most 35); returns root."""
    digits = open_dataset("digits")
    for split, half in (("train", digits.train), ("val", digits.test)):
        assert isinstance(half, ArrayImages)
        for label in range(classes):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for number, image in enumerate(half.images[half.labels == label][:per_class]):
                Image.fromarray(image[:, :, 0].numpy()).save(folder / f"{number:03}.png")
    return root
