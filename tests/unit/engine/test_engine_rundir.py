import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from timestepper.engine.metrics import JsonLines
from timestepper.engine.rundir import RunDirectory, check_run, mark, read_status
from timestepper.errors import RunDirectoryError

HOLDER = """
import sys, time
from pathlib import Path
from timestepper.engine.rundir import RunDirectory
folder = RunDirectory(Path(sys.argv[1]))
folder.status("running", step=3)
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("path", ["/proc/run", "/dev/null/run"])
def test_an_unwritable_place_is_an_error(path):
    with pytest.raises(RunDirectoryError, match=f"cannot write {path}"):
        RunDirectory(Path(path))


def test_status_is_replaced_whole(tmp_path):
    folder = RunDirectory(tmp_path)
    for step in range(3):
        folder.status("running", step=step)
    assert json.loads((tmp_path / "status.json").read_text())["step"] == 2
    assert sorted(item.name for item in tmp_path.iterdir()) == ["run.lock", "status.json"]
    folder.close()


def test_no_or_unreadable_status(tmp_path):
    assert read_status(tmp_path) is None
    (tmp_path / "status.json").write_text("{")
    assert read_status(tmp_path) is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", ["running"]),
        ("pid", "abc"),
        ("step", None),
        ("step", float("nan")),
        ("steps", "100"),
        ("time", 7),
        ("test_error", "low"),
    ],
)
def test_a_status_with_a_field_of_another_type_is_none(tmp_path, field, value):
    status = {"state": "running", "pid": 1, "host": socket.gethostname(), "time": "now", "step": 3, "steps": 9}
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert read_status(tmp_path) == status
    (tmp_path / "status.json").write_text(json.dumps({**status, field: value}))
    assert read_status(tmp_path) is None


def test_a_status_that_is_nested_without_end_is_none(tmp_path):
    (tmp_path / "status.json").write_text("[" * 10**6)
    assert read_status(tmp_path) is None


def test_a_process_of_another_machine_is_not_called_dead(tmp_path):
    status = {"state": "running", "pid": 2**22 + 1, "host": "elsewhere"}  # no process of this machine has that number
    (tmp_path / "status.json").write_text(json.dumps(status))
    assert read_status(tmp_path)["state"] == "running"
    (tmp_path / "status.json").write_text(json.dumps({**status, "host": socket.gethostname()}))
    assert read_status(tmp_path)["state"] == "killed"
    (tmp_path / "status.json").write_text(json.dumps({**status, "host": socket.gethostname(), "pid": 10**30}))
    assert read_status(tmp_path) is None


@pytest.mark.parametrize("there", ["", "runs", "runs/paper", "runs/paper/cifar10"])
def test_a_start_that_wrote_nothing_leaves_nothing_behind(tmp_path, there):
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    folder = RunDirectory(tmp_path / "runs" / "paper" / "cifar10")
    assert (folder.path / "run.lock").exists()
    folder.close()
    folder.close()
    assert sorted(tmp_path.rglob("*")) == before


def test_the_mark_of_a_process_that_was_killed_is_in_nobodys_way(tmp_path):
    mark(tmp_path, 7).touch()
    folder = RunDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
    folder.close()


def test_what_was_there_or_was_written_stays(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "run.lock").touch()
    RunDirectory(tmp_path / "old").close()
    assert (tmp_path / "old" / "run.lock").exists()
    folder = RunDirectory(tmp_path / "new" / "run")
    (tmp_path / "new" / "notes").touch()  # another's
    folder.close()
    assert [item.name for item in (tmp_path / "new").iterdir()] == ["notes"]
    folder = RunDirectory(tmp_path / "run")
    folder.status("failed")
    folder.close()
    assert sorted(item.name for item in (tmp_path / "run").iterdir()) == ["run.lock", "status.json"]


def test_a_refused_folder_keeps_what_it_held_and_gets_no_lock(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match=r"holds thesis\.tex and no run"):
        RunDirectory(tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_lock_that_its_owner_has_just_removed_is_no_lock(tmp_path, monkeypatch):
    lock = fcntl.lockf

    def late(file, flags):
        (tmp_path / "run" / "run.lock").unlink()
        lock(file, flags)

    monkeypatch.setattr("fcntl.lockf", late)
    with pytest.raises(RunDirectoryError, match="in use by another process"):
        RunDirectory(tmp_path / "run")


def test_a_folder_without_a_run_is_told_from_a_missing_one(tmp_path):
    with pytest.raises(RunDirectoryError, match=r"is no run directory: it has no recipe.toml; timestepper list shows"):
        check_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="is no run directory: there is no such folder; timestepper list shows"):
        check_run(tmp_path / "none")


def test_a_second_process_is_refused_although_the_lock_was_deleted(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        (tmp_path / "run" / "run.lock").unlink()
        with pytest.raises(RunDirectoryError, match=f"in use by process {holder.pid}, although somebody has removed"):
            RunDirectory(tmp_path / "run")
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with pytest.raises(RunDirectoryError, match=r"removed its run\.lock, or this is a copy of its folder; wait"):
            RunDirectory(tmp_path / "copy")
    finally:
        holder.kill()
        holder.communicate()
    RunDirectory(tmp_path / "run").close()


@pytest.mark.parametrize("name", ["removed", "taken"])
def test_a_folder_that_was_moved_away_gets_nothing_more(tmp_path, name):
    folder = RunDirectory(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    another = RunDirectory(tmp_path / "run") if name == "taken" else None
    with pytest.raises(RunDirectoryError, match="run was moved or removed while it was trained; nothing more is"):
        folder.status("running", step=7)
    folder.close()
    assert not list(tmp_path.rglob("status.json"))
    assert (tmp_path / "run" / "run.lock").exists() == (another is not None)
    if another:
        another.status("running")
        another.close()


def test_a_process_that_has_the_number_of_a_dead_one_holds_nothing(tmp_path):
    folder = RunDirectory(tmp_path)
    folder.status("running")
    folder.close()
    status = json.loads((tmp_path / "status.json").read_text())
    (tmp_path / "status.json").write_text(json.dumps(status | {"pid": 1}))  # the first process of any machine
    assert read_status(tmp_path)["state"] == "killed"
    RunDirectory(tmp_path).close()


@pytest.mark.parametrize("plant", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("name", ["run.lock", "metrics.jsonl"])
def test_a_planted_link_is_refused_and_its_target_stays(tmp_path, name, plant):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "run").mkdir()
    getattr(tmp_path / "run" / name, plant)(tmp_path / "precious")
    with pytest.raises(RunDirectoryError, match=rf"cannot write .*{name}: .*; remove that link"):
        RunDirectory(tmp_path / "run") if name == "run.lock" else JsonLines(tmp_path / "run" / name)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_run_that_lost_its_status_is_still_a_run(tmp_path):
    for name in ("recipe.toml", "record.json", "weights.safetensors"):
        (tmp_path / name).touch()
    RunDirectory(tmp_path).close()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_process_that_is_dead_and_not_yet_buried_holds_nothing(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    assert read_status(tmp_path / "run")["state"] == "killed"
    RunDirectory(tmp_path / "run").close()
    holder.communicate()


def test_a_folder_that_is_moved_while_a_file_is_written_is_told_as_moved(tmp_path, monkeypatch):
    folder, replace = RunDirectory(tmp_path / "run"), os.replace

    def moved_first(*names):
        folder.path.rename(tmp_path / "elsewhere")
        replace(*names)

    monkeypatch.setattr("os.replace", moved_first)
    with pytest.raises(RunDirectoryError, match="run was moved or removed while it was trained; nothing more is"):
        folder.status("running")
    folder.close()
