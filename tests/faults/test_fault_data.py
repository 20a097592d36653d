"""Data sets that are not what they should be: T23, T24."""

import hashlib
from pathlib import Path

import pytest
import runs

from timestepper.data.cifar_pickled import PICKLED

CIFAR = Path(__file__).parents[3] / "shared" / "data" / "cifar10"


def parent_given(root: Path) -> tuple[Path, list[str]]:
    return root.parent, ["did you mean", str(root)]


def other_classes(root: Path) -> tuple[Path, list[str]]:
    (root / "val" / "9").rename(root / "val" / "nine")
    return root, ["only in train: 9", "only in val: nine"]


@pytest.mark.parametrize("spoil", [parent_given, other_classes])
def test_t23_a_wrong_layout_is_refused_before_training(spoil, tmp_path, image_folder, cli):
    root, words = spoil(runs.copy(image_folder, tmp_path / "data" / "root"))
    run = tmp_path / "run"
    message = cli(*runs.train(run, recipe=runs.folder_recipe(root))).refused()
    assert all(word in message for word in [str(root), *words]), message
    assert not (run / "checkpoints").exists()
    assert str(root) in cli("check-data", "folder", "--root", str(root)).refused()


def test_t23_too_few_images_for_a_batch(tmp_path, image_folder, cli):
    recipe = [*runs.folder_recipe(image_folder), "data.batch_size=1000"]
    assert (
        "data.batch_size cannot be 1000 (allowed: at most 200"
        in cli(*runs.train(tmp_path / "run", recipe=recipe)).refused()
    )


# -- CIFAR -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path) -> Path:
    """The packed CIFAR-10, as links to be replaced by spoilt copies."""
    if not (CIFAR / "train_0.webp").exists():
        pytest.skip(f"needs the packed CIFAR-10 in {CIFAR}")
    folder = tmp_path / "data" / "cifar10"
    folder.mkdir(parents=True)
    for path in CIFAR.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def train_cifar(folder: Path, run: Path, name: str = "cifar10") -> list[str]:
    return runs.train(run, recipe=["smoke/digits", f"data.name={name}", f"data.root={folder.parent}"])


def replace(path: Path, content: bytes) -> str:
    """Put other content behind a name; the sum of the content that was there."""
    original = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    path.write_bytes(content)
    return original


def test_t24_every_spoilt_file_is_named_with_both_sums(cifar, cli):
    sums = {}
    for name in ("test_labels.npy", "classes.txt", "test_0.webp", "train_3.webp"):
        content = (cifar / name).read_bytes()
        spoilt = content[:-7] if name.startswith("test") else runs.flip_bit(content, 4 * len(content))
        sums[name] = replace(cifar / name, spoilt), hashlib.sha256(spoilt).hexdigest()
    outcome = cli("check-data", "cifar10", "--root", str(cifar.parent))
    assert "4 bad files" in outcome.refused()
    lines = {line.split(": ")[0]: line for line in outcome.out.splitlines()}
    assert lines.keys() == {str(cifar / name) for name in sums}
    for name, (expected, found) in sums.items():
        assert expected in lines[str(cifar / name)]
        assert found in lines[str(cifar / name)]


def test_t24_training_refuses_a_spoilt_file(tmp_path, cifar, cli):
    path = cifar / "train_labels.npy"
    expected = replace(path, path.read_bytes()[:-1])
    message = cli(*train_cifar(cifar, tmp_path / "run")).refused()
    assert str(path) in message
    assert expected in message
    assert hashlib.sha256(path.read_bytes()).hexdigest() in message
    path.unlink()
    message = cli(*train_cifar(cifar, tmp_path / "run")).refused()
    assert f"{path}: missing" in message
    assert expected in message


def test_t24_cifar10_given_as_cifar100(tmp_path, cifar, cli):
    message = cli(*train_cifar(cifar, tmp_path / "run", "cifar100")).refused()
    assert f"{cifar} holds cifar10" in message
    (cifar.parent / "cifar100").symlink_to(cifar)
    message = cli(*train_cifar(cifar, tmp_path / "run", "cifar100")).refused()
    assert "cifar100/classes.txt: sha256" in message
    assert "another one" in message


def test_t24_torchvision_layout_with_a_truncated_batch(tmp_path, cli):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in PICKLED["cifar10"].files:
        (folder / name).write_bytes(b"cut short")
    outcome = cli("check-data", "cifar10", "--root", str(tmp_path))
    outcome.refused()
    for name, expected in PICKLED["cifar10"].sums.items():
        (line,) = (line for line in outcome.out.splitlines() if line.startswith(f"{folder / name}: "))
        assert expected in line
        assert hashlib.md5(b"cut short").hexdigest() in line
    message = cli(*train_cifar(folder, tmp_path / "run")).refused()
    assert str(folder) in message
    assert "expected md5" in message


def test_t24_missing(tmp_path, cli):
    message = cli(*train_cifar(tmp_path / "cifar10", tmp_path / "run")).refused()
    assert f"cifar10 not found in {tmp_path}" in message
    assert "c58f30108f718f92721af3b95e74349a" in message
