"""The handwritten digits that come inside scikit-learn: 1797 images of 8 x 8 in 17 grey levels. Needs no download."""

import numpy as np

from timestepper.data.dataset import Dataset, in_memory

MEAN, STD = (0.3058,), (0.3761,)
"""Mean and deviation of the training half, in [0, 1]."""


def open_digits() -> Dataset:
    """1437 images to train on and 360 to test on, always the same ones.

    Sorted by class and then in scikit-learn's order, every fifth image is a test image: each class gives its fifth,
    and so does each of the writers, who follow one another in that order.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images = np.round(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    by_class = np.argsort(labels, kind="stable")
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[by_class[::5]] = True
    halves = ((images[chosen], labels[chosen]) for chosen in (~is_test, is_test))
    return in_memory("digits", halves, tuple("0123456789"), MEAN, STD)
