"""A whole Slurm on this machine, as any user: munged, slurmctld and two nodes, with all their files in one folder.

    python tests/cluster/start_slurm.py FOLDER      # prints what to set, and runs until Ctrl-C

Needs Debian's ``slurm-wlm`` and ``munge``. The nodes "a" and "b" are two slurmd. Jobs of the partition "urgent" put
those of "main" back into the queue, half a minute after they were told.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
NODES = ("a", "b")
CONFIGURATION = """
ClusterName=testing
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket,cred_expire=8
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1
KillWait=20
OverTimeLimit=0
ReturnToService=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=a NodeHostname={host} NodeAddr=127.0.0.1 Port={a} CPUs=2
NodeName=b NodeHostname={host} NodeAddr=127.0.0.1 Port={b} CPUs=2
PartitionName=main Nodes=a,b Default=YES State=UP PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=a,b State=UP PriorityTier=10
"""


def missing() -> str:
    """Why Slurm cannot be started here; empty where it can."""
    path = os.environ.get("PATH", "") + ":/usr/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return f"{', '.join(absent)} not installed (apt-get install slurm-wlm munge)" if absent else ""


class Slurm:
    """Started at once; use as a context. ``environment`` is what its commands need."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._running: dict[str, subprocess.Popen] = {}
        self.environment = {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": os.environ["PATH"] + ":/usr/sbin"}
        for name in ("state", "spool-a", "spool-b"):
            (folder / name).mkdir(parents=True)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        ports = dict(zip(("controller", *NODES), _free_ports(3), strict=True))
        facts = {"host": socket.gethostname().split(".")[0], "user": getpass.getuser(), "folder": folder}
        (folder / "slurm.conf").write_text(CONFIGURATION.format(**facts, **ports))
        try:
            self._start_all()
        except BaseException:
            self.stop()
            raise

    def _start_all(self) -> None:
        files = {name: f"--{name}-file={self.folder}/munge.{name}" for name in ("key", "pid", "log", "seed")}
        self.start("munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *files.values())
        self._until(lambda: (self.folder / "munge.socket").exists())
        self.start("slurmctld", "-D", "-c")
        for node in NODES:
            self.start(f"slurmd-{node}", "-D", "-N", node, program="slurmd")
        self._until(lambda: self.ask("sinfo", "-h", "-p", "main", "-o", "%t %D") == "idle 2")

    def start(self, name: str, *arguments: str, program: str = "", before: tuple[str, ...] = ()) -> None:
        """One of its programs, behind another command where one is given; its output goes to a file."""
        with open(self.folder / f"{name}.out", "ab") as out:
            self._running[name] = subprocess.Popen(
                [*before, program or name, *arguments],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def end(self, name: str) -> None:
        """One of its programs."""
        process = self._running.pop(name)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ask(self, *command: str) -> str:
        """What a command of Slurm's prints; nothing where it fails."""
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True)
        return "" if done.returncode else done.stdout.strip()

    def _until(self, condition) -> None:
        end = time.monotonic() + 120
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text(errors="replace")[-1000:] for path in self.folder.glob("*.out"))
                raise RuntimeError(f"Slurm does not start:\n{logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End everything, its jobs first."""
        if "slurmctld" in self._running:
            self.ask("scancel", "--signal=KILL", "--full", "--user", getpass.getuser())
            self.ask("scancel", "--user", getpass.getuser())
            end = time.monotonic() + 30
            while self.ask("squeue", "-h", "-t", "R,CG") and time.monotonic() < end:
                time.sleep(0.1)
        for name in list(reversed(self._running)):
            self.end(name)

    def __enter__(self) -> "Slurm":
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    if len(sys.argv) != 2 or missing():
        sys.exit(missing() or __doc__)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Slurm(Path(sys.argv[1]).absolute()) as slurm:
        print(f"export SLURM_CONF={slurm.environment['SLURM_CONF']}", flush=True)
        try:
            while True:
                time.sleep(60)
        except KeyboardInterrupt:
            pass
