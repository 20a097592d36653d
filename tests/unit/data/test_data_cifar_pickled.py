"""CIFAR in torchvision's layout: verified, read by a restricted unpickler, downloaded."""

import functools
import hashlib
import http.server
import pickle
import shutil
import tarfile
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cifar_files import write_python2, write_small_cifar
from hostile_files import Payload
from torchvision.datasets import CIFAR10, CIFAR100

from timestepper.data import check, cifar, open_dataset
from timestepper.data.cifar import fetch, read_cifar
from timestepper.data.cifar_pickled import PICKLED, unpickle
from timestepper.errors import DataError


@pytest.mark.parametrize(("name", "theirs"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_files_and_sums_are_the_published_ones(name, theirs):
    ours = PICKLED[name]
    assert ours.folder == theirs.base_folder
    assert ours.sums == dict(theirs.train_list + theirs.test_list) | {theirs.meta["filename"]: theirs.meta["md5"]}
    assert ours.files == (*dict(theirs.train_list), *dict(theirs.test_list), theirs.meta["filename"])
    assert (ours.meta, ours.names_key) == (theirs.meta["filename"], theirs.meta["key"])
    assert (ours.url, ours.archive_md5) == (theirs.url, theirs.tgz_md5)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_small_files_are_read_as_torchvision_reads_them(tmp_path, name):
    layout, contents = write_small_cifar(tmp_path, name)
    dataset = read_cifar(name, layout, tmp_path / layout.folder)
    for half, files in ((dataset.train, layout.train), (dataset.test, layout.test)):
        pixels = np.vstack([contents[file]["data"] for file in files])
        assert np.array_equal(half.images, pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        assert half.labels.tolist() == [label for file in files for label in contents[file][layout.labels_key]]
    assert dataset.classes == tuple(contents[layout.meta][layout.names_key])
    total = hashlib.sha256()
    for half in (dataset.train, dataset.test):
        total.update(half.images.numpy().tobytes() + half.labels.numpy().tobytes())
    assert dataset.sha256 == total.hexdigest()


def test_our_writer_of_old_pickles_is_understood_by_python_itself(tmp_path):
    content = {"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2]}
    write_python2(tmp_path / "batch", content)
    data = (tmp_path / "batch").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's, about the module name of old
        again = pickle.loads(data, encoding="latin1")
    assert np.array_equal(again["data"], content["data"])
    assert np.array_equal(unpickle(data, Path("batch"))["data"].values, content["data"])


def test_wrong_sums_name_the_file_and_both_sums(tmp_path):
    """The files are not the published ones, so the catalogue's own sums must refuse them."""
    layout, _ = write_small_cifar(tmp_path, "cifar10")
    file = tmp_path / layout.folder / "batches.meta"
    with pytest.raises(DataError) as caught:
        open_dataset("cifar10", tmp_path)
    message = str(caught.value)
    assert message.startswith(
        f"{file}: md5 {layout.sums['batches.meta']}, expected md5 5ff9c542aee3614f3951f8cda6e48888"
    )
    assert "download the data set again" in message
    assert "\n" not in message


def test_a_batch_cut_short_is_refused_before_it_is_parsed(tmp_path):
    layout, _ = write_small_cifar(tmp_path, "cifar10")
    batch = tmp_path / layout.folder / "data_batch_3"
    batch.write_bytes(batch.read_bytes()[:1000])
    found = hashlib.md5(batch.read_bytes()).hexdigest()
    with pytest.raises(
        DataError, match=f"data_batch_3: md5 {found}, expected md5 {layout.sums['data_batch_3']}.*1000 b"
    ):
        read_cifar("cifar10", layout, batch.parent)


def test_a_missing_batch_is_named_with_its_sum(tmp_path):
    layout, _ = write_small_cifar(tmp_path, "cifar10")
    (tmp_path / layout.folder / "test_batch").unlink()
    with pytest.raises(DataError, match=f"test_batch: missing .expected md5 {layout.sums['test_batch']}"):
        read_cifar("cifar10", layout, tmp_path / layout.folder)


def test_cifar10_given_as_cifar100(tmp_path):
    layout, _ = write_small_cifar(tmp_path, "cifar10")
    with pytest.raises(DataError, match=f"cifar100 not found in .*found {tmp_path / layout.folder} holds cifar10"):
        open_dataset("cifar100", tmp_path)
    disguise = tmp_path / "disguised" / "cifar-100-python"
    disguise.mkdir(parents=True)
    for old, new in (("data_batch_1", "train"), ("test_batch", "test"), ("batches.meta", "meta")):
        (tmp_path / layout.folder / old).rename(disguise / new)
    found = layout.sums["batches.meta"]
    with pytest.raises(DataError, match=f"meta: md5 {found}, expected md5 {PICKLED['cifar100'].sums['meta']}"):
        open_dataset("cifar100", tmp_path / "disguised")


class Evaluated(Payload):
    def __reduce__(self):
        return eval, (f"open({str(self.mark)!r}, 'w').close()",)


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("payload", [Payload, Evaluated])
def test_a_malicious_pickle_never_runs(tmp_path, payload, protocol):
    mark = tmp_path / "mark"
    evil = pickle.dumps({"data": payload(mark), "labels": []}, protocol)
    with pytest.raises(
        DataError, match=r"batch: refused, nothing in it was run: asks for \w+\.(system|eval), which no"
    ):
        unpickle(evil, tmp_path / "batch")
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for file in PICKLED["cifar10"].files:
        (folder / file).write_bytes(evil)
    with pytest.raises(DataError, match=f"md5 {hashlib.md5(evil).hexdigest()}, expected md5"):
        open_dataset("cifar10", tmp_path)
    assert len(check("cifar10", tmp_path)) == 7
    sums = dict.fromkeys(PICKLED["cifar10"].files, hashlib.md5(evil).hexdigest())
    with pytest.raises(DataError, match="nothing in it was run"):
        read_cifar("cifar10", replace(PICKLED["cifar10"], sums=sums), folder)
    assert not mark.exists()
    pickle.loads(evil)
    assert mark.exists(), "the payload must be a working one"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"data": np.array([{}], dtype=object)}, "asks for an array of type 'O8'"),
        ({"data": np.zeros(3)}, "asks for an array of type 'f8'"),
        ({"data": np.float64(1)}, "asks for numpy._core.multiarray.scalar|asks for numpy.core.multiarray.scalar"),
        ({"data": torch.float32}, "asks for"),
        ([1, 2], "holds a list, expected CIFAR's dictionary; use the original CIFAR files"),
    ],
)
def test_only_byte_arrays_can_be_made(tmp_path, content, message):
    write_python2(tmp_path / "batch", content)
    with pytest.raises(DataError, match=message):
        unpickle((tmp_path / "batch").read_bytes(), tmp_path / "batch")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros((20, 7), np.uint8)}, "'data' is not an array of rows of 3072 bytes; use the original"),
        ({"data": "text"}, "'data' is not an array"),
        ({"labels": [1, 2]}, "'labels' is not a list of 20 labels; use the original CIFAR files"),
        ({"labels": [10] * 20}, "labels run from .* to 10, but 10 classes allow only 0 to 9"),
    ],
)
def test_verified_files_of_the_wrong_shape_are_refused(tmp_path, change, message):
    layout, contents = write_small_cifar(tmp_path, "cifar10")
    folder = tmp_path / layout.folder
    layout.sums["data_batch_1"] = write_python2(folder / "data_batch_1", contents["data_batch_1"] | change)
    with pytest.raises(DataError, match=message):
        read_cifar("cifar10", layout, folder)


@pytest.fixture
def server(tmp_path):
    """A real web server on the folder `served`."""
    (tmp_path / "served").mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_download(tmp_path, server):
    layout, _ = write_small_cifar(tmp_path / "original", "cifar100")
    archive = tmp_path / "served" / "cifar.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "original" / layout.folder, layout.folder)
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    fetch(replace(layout, url=f"{server}/cifar.tar.gz", archive_md5=md5), tmp_path / "here")
    assert len(read_cifar("cifar100", layout, tmp_path / "here" / layout.folder).train) == 20

    with pytest.raises(DataError, match=f"download into {tmp_path / 'there'} failed .*expected md5 {'0' * 32}"):
        fetch(replace(layout, url=f"{server}/cifar.tar.gz", archive_md5="0" * 32), tmp_path / "there")
    assert not (tmp_path / "there" / layout.folder).exists()
    with pytest.raises(DataError, match=r"absent.tar.gz: download into .* failed .*404.*fetch it another way"):
        fetch(replace(layout, url=f"{server}/absent.tar.gz"), tmp_path / "there")


def test_processes_that_start_together_download_once(tmp_path, monkeypatch):
    layout, _ = write_small_cifar(tmp_path / "original", "cifar100")
    fetched = []

    def slow_fetch(_layout, root):
        fetched.append(root)
        time.sleep(0.3)
        shutil.copytree(tmp_path / "original" / layout.folder, root / layout.folder)

    monkeypatch.setattr(cifar, "fetch", slow_fetch)
    monkeypatch.setitem(cifar.PICKLED, "cifar100", layout)
    with ThreadPoolExecutor(3) as pool:
        opened = list(pool.map(lambda _: cifar.open_cifar("cifar100", [tmp_path / "here"], download=True), range(3)))
    assert [len(dataset.train) for dataset in opened] == [20] * 3
    assert fetched == [tmp_path / "here"]


def test_a_complete_copy_is_not_downloaded_again_and_an_incomplete_one_is(tmp_path, monkeypatch):
    layout, contents = write_small_cifar(tmp_path, "cifar100")
    fetched = []

    def fetch_again(_layout, root):
        fetched.append(root)
        write_python2(root / layout.folder / "test", contents["test"])

    monkeypatch.setattr(cifar, "fetch", fetch_again)
    monkeypatch.setitem(cifar.PICKLED, "cifar100", layout)
    before = sorted(tmp_path.rglob("*"))
    assert len(cifar.open_cifar("cifar100", [tmp_path], download=True).test) == 20
    assert fetched == []
    assert sorted(tmp_path.rglob("*")) == before, "nothing is written: the folder may be read-only"
    (tmp_path / layout.folder / "test").unlink()
    assert len(cifar.open_cifar("cifar100", [tmp_path], download=True).test) == 20
    assert fetched == [tmp_path]


def test_a_root_that_cannot_be_downloaded_into(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: cannot download into it \(File exists\); give another root"):
        cifar.open_cifar("cifar10", [tmp_path / "file"], download=True)
