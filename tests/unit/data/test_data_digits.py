"""The embedded digits and the catalogue of names."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from timestepper.data import NAMES, check, open_dataset
from timestepper.errors import DataError, UnknownNameError


@pytest.fixture(scope="module")
def digits():
    return open_dataset("digits")


def test_the_halves_are_all_of_scikit_learns_digits(digits):
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.classes == tuple("0123456789")
    pixels, labels = load_digits(return_X_y=True)
    ours = torch.cat([digits.train.images, digits.test.images]).flatten(1)
    ours_labels = torch.cat([digits.train.labels, digits.test.labels])
    ours = np.column_stack([np.rint(ours.double().numpy() * 16 / 255), ours_labels.numpy()])
    theirs = np.column_stack([pixels, labels])
    assert np.array_equal(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)])


def test_every_class_gives_a_fifth_to_the_test_half(digits):
    shares = digits.test.labels.bincount() / (digits.train.labels.bincount() + digits.test.labels.bincount())
    assert ((shares - 0.2).abs() < 0.006).all()


def test_the_split_is_pinned(digits):
    """Results of different days are compared: the halves must never move."""
    assert digits.sha256 == "d6ed6a79482fa5ad37267a2859bcc3901fda33cca6fd9bc1afe3f4defafeec51"
    assert open_dataset("digits").sha256 == digits.sha256


def test_mean_and_deviation_are_those_of_the_training_half(digits):
    pixels = digits.train.images.double() / 255
    assert digits.mean == pytest.approx([float(pixels.mean())], abs=5e-5)
    assert digits.std == pytest.approx([float(pixels.std())], abs=5e-5)


def test_digits_have_no_bad_file():
    assert check("digits") == []


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(UnknownNameError, match="'mnist'; there are " + ", ".join(NAMES)):
        open_dataset("mnist")
    with pytest.raises(UnknownNameError, match="'mnist'"):
        check("mnist")


def test_folders_without_a_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIMESTEPPER_DATA", str(tmp_path / "mine"))
    with pytest.raises(DataError, match="'folder' needs a root"):
        open_dataset("folder")
    with pytest.raises(
        DataError, match=r"imagenet not found as any of .*mine/imagenet, data/imagenet, .*set TIMESTEPPER"
    ):
        open_dataset("imagenet")


def test_importing_the_package_imports_no_torch():
    code = "import sys, timestepper.data as d; sys.exit('torch' in sys.modules or 'PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
