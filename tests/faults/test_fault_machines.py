"""Two agents of torchrun, as on two machines: found by the c10d rendezvous, one of them lost and coming back."""

import contextlib
import socket
from pathlib import Path

import pytest
import ranks
import runs
import torch
from outcomes import errors_of
from processes import Job, machine, torchrun
from watching import alive, children, wait_for

RECIPE = [*runs.DIGITS, "run.epochs=15", "run.checkpoint_steps=5"]  # 165 updates: time to lose a machine in


@contextlib.contextmanager
def two_machines(arguments: list[str], folder: Path, *cwds: Path, restarts: int = 3, more: tuple[str, ...] = ()):
    """Both agents and how to start one again. The first keeps the rendezvous; the second's command may have more."""
    port = ranks.free_port()
    with contextlib.ExitStack() as stack:

        def start(number: int) -> Job:
            line = [*arguments, *more] if number else arguments
            return stack.enter_context(machine(line, folder, port, cwds[number] if cwds else folder, restarts))

        first = start(0)
        wait_for(lambda: listens(port) or first.poll() is not None)
        yield first, start(1), start


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
        return True
    return False


def parameters(run: Path) -> list[torch.Tensor]:
    """All that gradients change: without the statistics of batch norms."""
    state = runs.newest(run)
    kept = [value for name, value in state["model"].items() if "running_" not in name and "batches" not in name]
    return [*kept, *state["momentum"]]


@pytest.fixture(scope="session")
def two_machine_run(tmp_path_factory) -> Path:
    """An uninterrupted run on two machines."""
    folder = tmp_path_factory.mktemp("machines")
    with two_machines(runs.train(folder / "run", recipe=RECIPE), folder) as (first, second, _):
        assert [first.wait(), second.wait()] == [0, 0], first.stderr + second.stderr
        assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in first.stdout + second.stdout
    return folder / "run"


def test_two_machines_end_bit_equal_to_one_process_that_takes_its_batch_in_two_parts(two_machine_run, tmp_path, cli):
    """Weights and momentum; a batch norm's running statistics are rank 0's there, and those of all parts here."""
    outcome = cli(*runs.train(tmp_path / "one", "data.accumulate=2", recipe=RECIPE))
    assert outcome.code == 0, outcome.err
    for ours, theirs in zip(parameters(two_machine_run), parameters(tmp_path / "one"), strict=True):
        assert torch.equal(ours, theirs)


def test_two_machines_end_byte_equal_to_two_processes_of_one(two_machine_run, tmp_path):
    with torchrun(runs.train(tmp_path / "pair", recipe=RECIPE), tmp_path) as job:
        assert job.wait() == 0, job.stdout + job.stderr
    assert runs.differing(tmp_path / "pair", two_machine_run) == []


@pytest.mark.parametrize("whole", [True, False], ids=["machine", "agent"])
def test_a_machine_that_is_lost_and_comes_back_ends_byte_equal(tmp_path, two_machine_run, whole):
    """``agent``: torchrun alone dies, and leaves a process behind that trains on until the new agent comes."""
    run = tmp_path / "run"
    with two_machines(runs.train(run, recipe=RECIPE), tmp_path) as (first, second, start):
        wait_for(lambda: runs.at_step(run, 5) or first.poll() is not None)
        left = children(second.pid)
        assert left
        second.kill_all() if whole else second.kill()
        second = start(1)
        assert [first.wait(), second.wait()] == [0, 0], first.stdout + first.stderr + second.stderr
        assert "going on at step" in first.stdout + second.stdout
        assert not any(map(alive, left))
    assert runs.state_of(run) == "finished"
    assert runs.differing(run, two_machine_run) == []


def test_a_folder_that_machines_do_not_share_is_told_in_one_line_and_nothing_is_left(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with two_machines(runs.train(Path("runs/x"), recipe=RECIPE), tmp_path, *folders, restarts=0) as (first, second, _):
        assert first.wait() != 0
        assert second.wait() != 0
        (told,) = errors_of(first.stderr + second.stderr)
    assert told.endswith(
        "rank 1 cannot see what rank 0 writes there; choose a --run-dir that all machines share, by the same name"
    )
    assert [list(folder.iterdir()) for folder in folders] == [[], []]


def test_machines_that_have_other_images_are_refused(tmp_path):
    """Copies may lie elsewhere, but one of these has lost an image."""
    roots = [runs.write_digit_folder(tmp_path / name, per_class=4, classes=2) for name in ("a", "b")]
    (roots[1] / "train" / "1" / "003.png").unlink()
    recipe = [*runs.folder_recipe(roots[0]), "data.workers=0", "data.batch_size=4"]
    arguments = runs.train(tmp_path / "x", recipe=recipe)
    more = (f"data.root={roots[1]}",)
    with two_machines(arguments, tmp_path, restarts=0, more=more) as (first, second, _):
        assert first.wait() != 0
        assert second.wait() != 0
        (told,) = errors_of(first.stderr + second.stderr)
    mine, theirs = (8, 7) if "8 and 4 here" in told else (7, 8)  # what rank 0 is is the rendezvous' choice
    assert told == (
        f"rank 1 has other images than rank 0 ({theirs} to train and 4 to test on there, {mine} and 4 here, or other "
        "names or sizes); give data.root the same everywhere"
    )
    assert not (tmp_path / "x").exists()


def test_machines_that_are_given_other_recipes_are_refused(tmp_path):
    """What rank 0 is is the rendezvous' choice."""
    more = ("optimiser.lr=0.2", "data.workers=3")
    with two_machines(runs.train(tmp_path / "x", recipe=RECIPE), tmp_path, restarts=0, more=more) as (first, second, _):
        assert first.wait() != 0
        assert second.wait() != 0
        told = errors_of(first.stderr + second.stderr)
    assert told == [
        f"{tmp_path / 'x'}: rank 1 was started with another recipe than rank 0; give the same command on every machine"
    ]
    assert not (tmp_path / "x").exists()
