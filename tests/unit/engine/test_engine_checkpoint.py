import errno
import os
import pickle
import random
import re
import resource
import zipfile
from pathlib import Path

import pytest
import torch

from timestepper.engine import checkpoint
from timestepper.engine.checkpoint import Checkpoints, read
from timestepper.errors import CheckpointError, DiskFullError, DivergedError, RunDirectoryError
from timestepper.files import explain, make_folder, prepare_file, remove_leftovers, write_atomic

IDENTITY = {"model": "tiny", "classes": 10, "controller": "lstm"}


@pytest.fixture
def store(tmp_path):
    made = Checkpoints(tmp_path / "checkpoints")
    made.create()
    return made


def state(value=1.0):
    return {
        "model": {"weight": torch.full((50, 7), value), "count": torch.tensor(3)},
        "best": {"error": 0.5},
        "note": None,
    }


def test_what_goes_in_comes_out(store):
    path = store.save(48, state(), IDENTITY)
    assert path.name == "step-00000048.pt"
    found, content = store.latest()
    assert found == path
    assert content["step"] == 48
    assert content["identity"] == IDENTITY
    assert content["best"] == {"error": 0.5}
    assert torch.equal(content["model"]["weight"], torch.full((50, 7), 1.0))
    checkpoint.check(path, content, IDENTITY)


def test_two_are_kept_and_leftovers_go(store):
    (store.folder / "step-00000009.pt.tmp").write_bytes(b"half")
    for step in (1, 2, 3, 12):
        store.save(step, state(), IDENTITY)
    assert [path.name for path in store.paths()] == ["step-00000003.pt", "step-00000012.pt"]
    store.create()
    assert not list(store.folder.glob("*.tmp"))


def test_what_was_just_saved_stays_although_others_have_higher_numbers(store):
    for step in (10, 20, 5):
        store.save(step, state(), IDENTITY)
    assert [path.name for path in store.paths()] == ["step-00000005.pt", "step-00000010.pt", "step-00000020.pt"]


def test_a_view_is_saved_without_the_rest_of_its_memory(store):
    small = store.save(1, {"model": {"view": torch.zeros(1_000_000)[:10]}}, IDENTITY)
    assert small.stat().st_size < 20_000


def test_newest_sound_one_wins_and_the_damaged_one_is_named(store):
    for step in (1, 2):
        store.save(step, state(float(step)), IDENTITY)
    newest = store.paths()[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    told = []
    path, content = store.latest(told.append)
    assert path.name == "step-00000001.pt"
    assert content["step"] == 1
    assert len(told) == 1
    assert str(newest) in told[0]
    assert newest.exists()
    store.latest(told.append, set_aside=True)
    assert [p.name for p in sorted(store.folder.iterdir())] == ["step-00000001.pt", "step-00000002.pt.damaged"]


def test_all_damaged_is_an_error_that_lists_them(store):
    for step in (1, 2):
        store.save(step, state(), IDENTITY).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"step-00000002\.pt is damaged.*step-00000001\.pt is damaged"):
        store.latest()
    assert len(store.paths()) == 2


def test_none_at_all(store):
    assert store.latest() is None


def test_every_truncation_and_flip_is_noticed_or_harmless(store):
    whole = store.save(5, state(), IDENTITY).read_bytes()
    path = store.paths()[0]
    expected = read(path)
    draw = random.Random(0)
    damaged = [whole[: draw.randrange(len(whole))] for _ in range(25)]
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    for start in range(0, len(whole), 4096):
        damaged.append(whole[:start] + bytes(min(4096, len(whole) - start)) + whole[start + 4096 :])
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            found = read(path)
        except CheckpointError:
            refused += 1
            continue
        assert torch.equal(found["model"]["weight"], expected["model"]["weight"])
        assert found["step"] == expected["step"]
    assert refused >= 25


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_a_pickle_that_runs_code_never_runs(store, tmp_path, form):
    target = tmp_path / "executed"
    path = store.folder / "step-00000001.pt"
    content = {"format": 1, "identity": IDENTITY, "step": 1, "model": Payload(str(target))}
    if form == "zip":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(CheckpointError) as caught:
        store.latest()
    assert not target.exists()
    assert "weights_only" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_zip_that_is_no_checkpoint(store):
    path = store.folder / "step-00000001.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", "b")
    with pytest.raises(CheckpointError, match=r"step-00000001\.pt"):
        read(path)
    torch.save({"weights": torch.ones(1)}, path)
    with pytest.raises(CheckpointError, match="no checkpoint of timestepper"):
        read(path)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"model": "other"}, "checkpoint is model tiny, classes 10, controller lstm, you asked for model other"),
        ({"classes": 100}, "classes 100"),
        ({"controller": "none"}, "you asked for model tiny, classes 10, controller none"),
    ],
)
def test_another_network_is_refused(store, changed, text):
    path = store.save(1, state(), IDENTITY)
    with pytest.raises(CheckpointError, match=text):
        checkpoint.check(path, read(path), IDENTITY | changed)


def test_a_newer_format_is_refused(store):
    path = store.save(1, {**state(), "format": 99}, IDENTITY)
    with pytest.raises(CheckpointError, match=r"format 99.*update timestepper"):
        checkpoint.check(path, read(path), IDENTITY)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_never_saved(store, value):
    with pytest.raises(DivergedError, match=r"step 7: model\.weight"):
        store.save(7, state(value), IDENTITY)
    assert store.paths() == []


def test_objects_are_refused_by_name(store):
    with pytest.raises(TypeError, match=r"model\.thing is a set"):
        store.save(1, {"model": {"thing": {1}}}, IDENTITY)


def test_a_full_disk_names_path_and_need_and_keeps_the_old_file(store):
    old = store.save(1, state(), IDENTITY)
    before = old.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DiskFullError, match=r"No space left for .*step-00000002\.pt: need \d"):
            store.save(2, state(), IDENTITY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in store.folder.iterdir()] == [old.name]
    assert old.read_bytes() == before


def test_too_little_free_space_is_noticed_before_writing(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match=r"need 0\.1 MB"):
        write_atomic(tmp_path / "file", bytes(100_000))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.tmp").mkdir()  # in the way of the temporary file
    with pytest.raises(RunDirectoryError, match=r"cannot write .*folder"):
        write_atomic(tmp_path / "folder", b"x")


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(DiskFullError):
            write_atomic(path, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_old_file_stays_until_the_new_one_takes_its_name(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(RunDirectoryError, match=r"cannot write .*file: Input/output error"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_a_spent_quota_and_a_limit_on_files_are_one_error(tmp_path, number):
    error = explain(OSError(number, "no room"), tmp_path / "file", 2_500_000)
    assert isinstance(error, DiskFullError)
    assert re.match(r"No space left for .*/file: need 2\.5 MB, \d+\.\d MB are free", str(error))
    assert not isinstance(explain(OSError(errno.EACCES, "may not"), tmp_path / "file"), DiskFullError)


def test_the_advice_for_a_failed_write_fits_its_cause(tmp_path):
    (tmp_path / "file").touch()
    for path, advice in (
        (tmp_path / "none" / "x", "No such file or directory; make the folder first"),
        (tmp_path / "file" / "x", "Not a directory; a file is in the way"),
        (tmp_path, "Is a directory; it is a folder, name a file"),
        (Path(""), "Is a directory; it is a folder, name a file"),
        (Path("/"), "Is a directory; it is a folder, name a file"),
    ):
        with pytest.raises(RunDirectoryError, match=f"cannot write {path}: {advice}$"):
            write_atomic(path, b"x")
    with pytest.raises(RunDirectoryError, match=f"cannot write {tmp_path}/file: File exists; a file is in the way$"):
        make_folder(tmp_path / "file")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_file_to_be_written_later_has_a_name_and_a_folder(tmp_path):
    prepare_file(tmp_path / "a" / "b" / "x.json")
    assert (tmp_path / "a" / "b").is_dir()
    for path in (Path(""), tmp_path / "a"):
        with pytest.raises(RunDirectoryError, match="name a file"):
            prepare_file(path)


def test_a_folder_that_may_not_be_written_to_is_named_before_the_work(tmp_path, monkeypatch):
    make_folder(tmp_path / "new" / "below")
    assert (tmp_path / "new" / "below").is_dir()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(RunDirectoryError, match=f"cannot write {tmp_path}: Permission denied; check that the folder"):
        make_folder(tmp_path)


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path):
    for name in ("a.pt", "a.pt.tmp", "b.tmp"):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]
