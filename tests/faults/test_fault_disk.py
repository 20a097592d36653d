"""No space and no permission: T12 and T13 (read-only folder)."""

import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
from outcomes import message_of
from processes import become_nobody, command, limit_file_size, ranks
from stopping import drive
from watching import Watch

import timestepper
from timestepper.errors import DiskFullError
from timestepper.files import write_atomic

SHORT = [*runs.SHORT, "run.checkpoint_steps=3"]
TOO_SMALL = functools.partial(limit_file_size, 100_000)  # a checkpoint has 620 kB, every other file a few


def sums(run: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in runs.checkpoints(run)}


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped at step 8."""
    run = tmp_path_factory.mktemp("disk") / "run"
    assert drive(runs.train(run, recipe=SHORT), signal_after=9) == 8
    return run


def nothing_lost(run: Path, before: dict[str, str], stderr: str) -> None:
    """The message names path and need; the old checkpoints are untouched, nothing half written is left."""
    message = message_of(stderr)
    assert message.startswith(f"No space left for {run}/checkpoints/step-"), message
    assert re.search(r"need 0\.6\d* MB", message), message
    assert sums(run) == before
    assert runs.leftovers(run) == []


def test_t12_no_space_for_a_checkpoint(tmp_path, stopped_run, figure):
    run = runs.copy(stopped_run, tmp_path / "run")
    before = sums(run)
    with command(runs.train(run, recipe=SHORT), tmp_path, prepare=TOO_SMALL) as job, Watch() as watch:
        assert job.wait() == 1
        nothing_lost(run, before, job.stderr)
    assert runs.state_of(run) == "failed"
    assert drive(runs.train(run, recipe=SHORT)) is None  # room was made: it goes on
    reference = runs.copy(stopped_run, tmp_path / "reference")
    assert drive(runs.train(reference, recipe=SHORT)) is None
    assert runs.differing(run, reference) == []
    figure(seconds=watch.seconds)


def test_t12_no_space_ends_all_processes(tmp_path, stopped_run, unused_port, figure):
    run = runs.copy(stopped_run, tmp_path / "run")
    before = sums(run)
    with ranks(runs.train(run, recipe=SHORT), tmp_path, unused_port, prepare=TOO_SMALL) as jobs, Watch() as watch:
        assert [job.wait() for job in jobs] == [1, 1]
        nothing_lost(run, before, jobs[0].stderr)
        assert "Traceback" not in jobs[1].stderr
    figure(seconds=watch.seconds)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system: room for two checkpoints and a bit."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small tmpfs needs root and is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_t12_full_disk(tmp_path, stopped_run, small_disk, figure):
    run = small_disk / "run"
    with command(runs.train(run, recipe=[*SHORT, "run.tensorboard=true"]), tmp_path) as job, Watch() as watch:
        assert job.wait() == 1
        before = sums(run)
        nothing_lost(run, before, job.stderr)
    assert len(before) == 2
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    assert drive(runs.train(run, recipe=SHORT)) is None
    figure(seconds=watch.seconds)


def test_a_disk_without_room_for_another_file_says_so(small_disk):
    subprocess.run(["mount", "-o", "remount,nr_inodes=2", str(small_disk)], check=True)
    write_atomic(small_disk / "file", b"old")
    with pytest.raises(DiskFullError, match=r"MB are free and no more files can be made \(no inodes\)"):
        write_atomic(small_disk / "file", b"new")
    assert [path.read_bytes() for path in small_disk.iterdir()] == [b"old"]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may look into."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_t13_read_only_folder_is_refused_before_the_first_step(open_folder, tmp_path, stopped_run, figure):
    held = runs.copy(stopped_run, open_folder / "held")
    new = open_folder / "new"
    new.mkdir()
    if os.geteuid():
        pytest.skip("the folders belong to this user; run as root, which can become another one")
    for place in Path(timestepper.__file__).parents:
        if not place.stat().st_mode & stat.S_IXOTH:
            pytest.skip(f"no other user may look into {place}, so none can read the recipes")
    slowest = 0.0
    for run in (held, new, new / "below"):
        arguments = runs.train(run, recipe=SHORT)
        with command(arguments, tmp_path, prepare=become_nobody) as job, Watch() as watch:
            assert job.wait() == 2, job.stderr
            message = message_of(job.stderr)
        assert message.startswith(f"cannot write {run}/run.lock: Permission denied")
        slowest = max(slowest, watch.seconds)
    assert sums(held) == sums(stopped_run)
    figure(seconds=slowest)
