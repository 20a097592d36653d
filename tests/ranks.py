"""Several processes of one job, as torchrun starts them, on this machine."""

import os
import socket
import subprocess
import sys


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def together(world, *arguments):
    """Run Python with these arguments once per rank; what each rank printed. All of them must end well."""
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    common = {"WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1", **rendezvous}
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            env=os.environ | common | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, outputs
    return [output for output, _ in outputs]
