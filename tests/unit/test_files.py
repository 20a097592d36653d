"""Files that are whole or not there."""

import errno
import fcntl
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from timestepper.errors import DiskFullError, RunDirectoryError
from timestepper.files import explain, make_folder, prepare_file, remove_leftovers, write_atomic

TOKEN = "0123456789abcdef"


def test_too_little_free_space_is_noticed_before_writing(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(DiskFullError, match=r"need 0\.1 MB"):
        write_atomic(tmp_path / "file", bytes(100_000))
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
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
    for name in ("a.pt", f"a.pt.{TOKEN}.tmp", "notes.tmp", "b.0123.tmp"):
        (tmp_path / name).touch()
    (tmp_path / f"folder.{TOKEN}.tmp").mkdir()
    remove_leftovers(tmp_path)
    left = ["a.pt", "b.0123.tmp", f"folder.{TOKEN}.tmp", "notes.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_file_that_is_written_once_more_is_rid_of_what_a_killed_process_left_of_it(tmp_path):
    for name in (f"file.{TOKEN}.tmp", "file.tmp", f"other.{TOKEN}.tmp", f"file.x.{TOKEN}.tmp"):
        (tmp_path / name).write_text("half")
    write_atomic(tmp_path / "file", b"x")
    left = ["file", "file.tmp", f"file.x.{TOKEN}.tmp", f"other.{TOKEN}.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left


def test_a_link_planted_at_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f"file.{TOKEN}.tmp").symlink_to(tmp_path / "precious")
    tokens = iter([TOKEN, "f" * 16])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(tokens))
    with pytest.raises(RunDirectoryError, match=r"cannot write .*file: File exists"):
        write_atomic(tmp_path / "file", b"x")
    write_atomic(tmp_path / "file", b"x")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_file_that_another_takes_for_a_dead_ones_is_left_to_it(tmp_path, monkeypatch):
    """It has locked the new file first, to remove it."""
    names, lock = [], fcntl.flock

    def second(file, how):
        names.append(file.name)
        if len(names) == 1:
            raise BlockingIOError
        lock(file, how)

    monkeypatch.setattr("fcntl.flock", second)
    write_atomic(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x"
    assert [str(path) for path in tmp_path.iterdir() if path.name != "file"] == names[:1]  # nobody removed it here


def test_without_locks_a_file_is_written_all_the_same(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", fail)
    write_atomic(tmp_path / "file", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_leaves_no_room_for_the_temporary_one_is_refused_before_the_work(tmp_path):
    write_atomic(tmp_path / ("n" * 234), b"x")
    for write in (prepare_file, lambda path: write_atomic(path, b"x")):
        with pytest.raises(RunDirectoryError, match="File name too long; choose a shorter name"):
            write(tmp_path / ("n" * 235))


WRITE = """
import pathlib, sys
from timestepper.files import write_atomic
for _ in range(40):
    write_atomic(pathlib.Path(sys.argv[1]), sys.argv[2].encode() * 3_000_000)
"""


def test_several_processes_that_write_one_file_do_not_mix(tmp_path):
    """Whoever reads it meanwhile finds the whole of one of them."""
    path = tmp_path / "file"
    write_atomic(path, b"c" * 3_000_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter]) for letter in "ab"]
    while any(writer.poll() is None for writer in writers):
        content = path.read_bytes()
        assert len(content) == 3_000_000
        assert len(set(content)) == 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]


def test_a_device_or_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        for write in (prepare_file, lambda path: write_atomic(path, b"x")):
            with pytest.raises(RunDirectoryError, match=f"cannot write {path}: it is a device or a pipe; name a file"):
                write(path)
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()
