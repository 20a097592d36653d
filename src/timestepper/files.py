"""Files that are either whole or not there, and the checksum of what is in them."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import IO, Any

from timestepper.errors import CheckpointError, DiskFullError, RunDirectoryError, TimestepperError

LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.tmp$")  # behind the name of a file that is being written, or was when we died
_TEMPORARY = len(".0123456789abcdef.tmp")
_LONGEST_NAME = 255  # bytes, on every usual file system
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_HINTS = {
    errno.ENOENT: "make the folder first",
    errno.EISDIR: "it is a folder, name a file",
    errno.EEXIST: "a file is in the way",
    errno.ENOTDIR: "a file is in the way",
    errno.ELOOP: "remove that link or device",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that a kill or a full disk at any moment leaves the old one or the new one, never a part."""
    check_file(path)
    temporary = path  # nothing yet
    try:
        if shutil.disk_usage(path.parent).free < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _remove_dead(path)
        with _beside(path) as file:
            temporary = Path(file.name)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name lasts through a power cut too
        finally:
            os.close(folder)
    except OSError as error:
        if temporary != path:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise explain(error, path, len(data)) from error


def write_json(path: Path, content: Any, indent: int = 1) -> None:
    """Write a JSON file, whole or not at all."""
    write_atomic(path, (json.dumps(content, indent=indent) + "\n").encode())


def _beside(path: Path) -> IO[bytes]:
    """A new file of its own, for others may write the same one; locked as long as it is open, as those who live do."""
    while True:
        file = open(path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp"), "xb")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.exists(file.name)
        except BlockingIOError:
            ours = False
        except OSError:  # a file system without locks
            ours = True
        if ours:
            return file
        file.close()  # another took it for a dead one's before it was locked, and removes it


def _remove_dead(path: Path) -> None:
    """Remove what processes left that were killed while they wrote this file: nobody holds its lock."""
    for name in os.listdir(path.parent):
        if name.startswith(path.name) and LEFTOVER.fullmatch(name, len(path.name)):
            with contextlib.suppress(OSError), open_own(path.with_name(name)) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path.with_name(name))


def check_file(path: Path) -> None:
    """Refuse what cannot be the name of a file: an empty or too long one, that of a folder, a device or a pipe."""
    if not path.name or os.path.isdir(path):
        raise explain(IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)), path)
    if len(os.fsencode(path.name)) + _TEMPORARY > _LONGEST_NAME:
        raise explain(OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG)), path)
    if os.path.lexists(path) and not (os.path.islink(path) or os.path.isfile(path)):
        raise RunDirectoryError(f"cannot write {path}: it is a device or a pipe; name a file")


def check_readable(path: Path) -> None:
    """Refuse a device or a pipe: it may never end, and whoever waits for it hears no signal."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise OSError(errno.EINVAL, "it is a device or a pipe")


def as_path(path: str | os.PathLike) -> Path:
    """The path of a file that a user names."""
    try:
        return Path(path)
    except TypeError:
        raise CheckpointError(f"the path of a .safetensors file is needed, not {path!r}") from None


def read_file(path: Path) -> bytes:
    """All of a file, which is no device and no pipe."""
    check_readable(path)
    return path.read_bytes()


def open_own(path: Path) -> IO[bytes]:
    """Open a file to read and to add to, and make it where it is missing; a link to another file is refused."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    file = os.fdopen(descriptor, "ab+", buffering=0)
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        file.close()
        raise OSError(errno.ELOOP, "it is not a file of its own")
    return file


def prepare_file(path: Path) -> None:
    """Make the folder of a file that is to be written; called before long work, so that it does not fail at its end."""
    check_file(path)
    make_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder that can be written to; called before long work, so that it does not fail at its end."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise explain(error, folder) from error


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half written in a folder that is ours alone, and nothing that is not ours."""
    for item in folder.iterdir():
        if LEFTOVER.search(item.name) and not item.is_dir():
            item.unlink(missing_ok=True)


def explain(error: OSError, path: Path, need: int = 0) -> TimestepperError:
    """The error to raise for a write that failed."""
    if error.errno not in _FULL:
        hint = _HINTS.get(error.errno or 0, "check that the folder is writable")
        return RunDirectoryError(f"cannot write {path}: {error.strerror or error}; {hint}")
    try:
        about = os.statvfs(path.parent)
        free = f"{about.f_bavail * about.f_frsize / 1e6:.1f} MB are free"
        if about.f_files and not about.f_favail:
            free += " and no more files can be made (no inodes)"
    except OSError:
        free = "free space is unknown"
    return DiskFullError(
        f"No space left for {path}: need {need / 1e6:.3g} MB, {free} (or a file size limit applies); "
        "make room and run the same command again"
    )


def digest(content: Any) -> str:
    """sha256 of the canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def with_checksum(content: dict[str, Any]) -> dict[str, Any]:
    """The content with its checksum, which stands last, so that an edit by hand is noticed."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    return {**content, "sha256": digest(content)}
