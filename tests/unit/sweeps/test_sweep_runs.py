import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from tiny_sweep import alone, entries, remains, run_sweep

from timestepper.engine.rundir import RunDirectory, read_status
from timestepper.engine.signals import Signals
from timestepper.errors import LaunchError
from timestepper.recipe.load import load
from timestepper.runs import build
from timestepper.sweeps.one_gpu import Shared, exit_code

PLAIN = ("smoke/digits",)


def outcomes(runs):
    return [run.state for run in runs]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Four runs that took turns, three at a time."""
    wanted = entries(tmp_path_factory.mktemp("swept"), seeds=(0, 1))
    runs = run_sweep(wanted, jobs=3)
    assert outcomes(runs) == ["finished"] * 4
    return wanted


@pytest.mark.parametrize("number", range(4))
def test_each_run_is_the_run_alone_bit_for_bit(number, swept, tmp_path):
    entry = swept[number]
    assert remains(entry.path) == remains(alone(entry, tmp_path / "alone"))


def test_runs_of_one_sweep_differ(swept):
    assert len({(entry.path / "weights.safetensors").read_bytes() for entry in swept}) == 4


def test_times_say_how_many_runs_shared_the_device(swept):
    lines = [json.loads(line) for entry in swept for line in (entry.path / "timing.jsonl").read_text().splitlines()]
    shared = {line["sharing"] for line in lines}
    assert max(shared) == 3
    assert min(shared) >= 1


@pytest.mark.parametrize("processes", ["0", "x", "1.5", "-2"])
def test_an_odd_number_of_sweeps_that_share_a_gpu_is_refused_before_anything_is_trained(
    processes, tmp_path, monkeypatch
):
    wanted = entries(tmp_path, recipes=PLAIN)
    monkeypatch.setenv("TIMESTEPPER_GPU_PROCESSES", processes)
    with pytest.raises(LaunchError, match=f"TIMESTEPPER_GPU_PROCESSES='{processes}'"):
        run_sweep(wanted)
    assert not any(entry.path.exists() for entry in wanted)


def test_runs_of_several_sweeps_on_one_gpu_have_their_share_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TIMESTEPPER_GPU_PROCESSES", "3")
    (entry,) = entries(tmp_path, recipes=PLAIN)
    run_sweep([entry])
    lines = [json.loads(line) for line in (entry.path / "timing.jsonl").read_text().splitlines()]
    assert {line["sharing"] for line in lines} == {3}


def test_a_finished_sweep_is_not_repeated_but_gives_its_records(swept, tmp_path):
    before = [(entry.path / "record.json").stat().st_mtime_ns for entry in swept]
    runs = run_sweep(swept, results=tmp_path / "results")
    assert outcomes(runs) == ["already finished"] * 4
    assert len(list((tmp_path / "results").glob("*.json"))) == 4
    assert exit_code(runs, 0) == 0
    assert [(entry.path / "record.json").stat().st_mtime_ns for entry in swept] == before


def test_runs_of_different_precision_keep_their_own(tmp_path):
    """Torch keeps these settings for the whole process; each turn has to bring its run's own."""
    wanted = entries(tmp_path, "runtime.precision=float32,bf16", "runtime.deterministic=false,true", recipes=PLAIN)
    assert outcomes(run_sweep(wanted)) == ["finished"] * 4
    for number, entry in enumerate(wanted):
        assert remains(entry.path) == remains(alone(entry, tmp_path / f"alone-{number}"))
    torch.use_deterministic_algorithms(False)


def test_a_failing_run_leaves_the_others_alone(tmp_path, swept, monkeypatch):
    """Divergence, a recipe that cannot be built, a folder in use, no memory, code that leaves: each is told of."""
    diverges = entries(tmp_path / "a", "optimiser.lr=1e9", recipes=PLAIN)
    unbuildable = entries(tmp_path / "b", "model.name=cifar/densenet40", "model.last_norm_init=0.5", recipes=PLAIN)
    locked = entries(tmp_path / "c", recipes=PLAIN)
    greedy = entries(tmp_path / "d", "run.seed=7", recipes=PLAIN)
    leaving = entries(tmp_path / "f", "run.seed=8", recipes=PLAIN)
    sound = entries(tmp_path / "e", seeds=(0,), recipes=PLAIN)

    whole = build.network

    def network(recipe, *rest):
        if recipe.run.seed == 7:
            torch.empty(1 << 60)
        if recipe.run.seed == 8:
            sys.exit(0)
        return whole(recipe, *rest)

    monkeypatch.setattr(build, "network", network)
    with _held_by_another_process(locked[0].path):
        runs = run_sweep([*diverges, *unbuildable, *locked, *greedy, *leaving, *sound])
    assert outcomes(runs) == ["failed"] * 5 + ["finished"]
    told = [run.message for run in runs]
    assert "learning rate 1e+09" in told[0]
    assert "last_norm_init" in told[1]
    assert "is in use by" in told[2]
    assert "RuntimeError" in told[3]
    assert told[4] == "SystemExit: 0"
    assert exit_code(runs, 0) == 1
    assert read_status(diverges[0].path)["state"] == "failed"
    assert remains(sound[0].path)["weights"] == remains(swept[0].path)["weights"]


HOLDER = """
import pathlib, sys
from timestepper.engine.rundir import RunDirectory
folder = RunDirectory(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _held_by_another_process(path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], **pipes) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield
        holder.stdin.close()


class StopsAfter(Signals):
    """Asks to stop at a given look at it, as a signal does that arrives at a random moment."""

    def __init__(self, looks):
        self._looks = looks
        super().__init__()

    @property
    def stop(self):
        self._looks -= 1
        return signal.SIGTERM if self._looks < 0 else 0

    @stop.setter
    def stop(self, value):
        pass


class SavesAtRound(Signals):
    """Asks for a checkpoint once, in a given round of turns."""

    def __init__(self, rounds):
        self._rounds = rounds
        super().__init__()

    @property
    def save(self):
        self._rounds -= 1
        return int(self._rounds == 0)

    @save.setter
    def save(self, value):
        pass


@pytest.mark.parametrize("looks", [5, 23, 50])
def test_a_stopped_sweep_saves_all_and_goes_on_exactly(looks, tmp_path, swept):
    wanted = entries(tmp_path, seeds=(0, 1))
    runs = run_sweep(wanted, StopsAfter(looks), jobs=3)
    assert "interrupted" in outcomes(runs)
    assert set(outcomes(runs)) <= {"interrupted", "waiting", "finished"}
    assert exit_code(runs, signal.SIGTERM) == 128 + signal.SIGTERM
    for run in runs:
        if run.state == "interrupted":
            status = read_status(run.path)
            assert status["state"] == "interrupted"
            assert status["checkpoint"] == f"step-{status['step']:08d}.pt"
    again = run_sweep(wanted, jobs=3)
    assert set(outcomes(again)) <= {"finished", "already finished"}
    for entry, reference in zip(wanted, swept, strict=True):
        assert remains(entry.path) == remains(reference.path)


def test_no_more_runs_than_jobs_hold_a_folder_at_a_time(tmp_path, monkeypatch):
    held, most = set(), 0
    opened, closed = RunDirectory.__init__, RunDirectory.close

    def opening(self, path):
        nonlocal most
        opened(self, path)
        held.add(path)
        most = max(most, len(held))

    def closing(self):
        held.discard(self.path)
        closed(self)

    monkeypatch.setattr(RunDirectory, "__init__", opening)
    monkeypatch.setattr(RunDirectory, "close", closing)
    runs = run_sweep(entries(tmp_path, recipes=PLAIN, seeds=(0, 1, 2)), jobs=2)
    assert outcomes(runs) == ["finished"] * 3
    assert most == 2


def test_all_runs_share_one_copy_of_the_data(tmp_path):
    shared, cpu = Shared(), torch.device("cpu")
    first, second = (shared.dataset(entry.recipe, cpu) for entry in entries(tmp_path, recipes=PLAIN, seeds=(0, 1)))
    assert first.train.images.data_ptr() == second.train.images.data_ptr()


def test_data_of_another_folder_or_size_is_not_shared(tmp_path):
    for root, count in (("a", 1), ("b", 2)):
        for path in (tmp_path / root / split / label for split in ("train", "val") for label in "01"):
            path.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 40)).save(path / f"{number}.png")

    shared = Shared()

    def opened(root, size):
        changes = ["data.name=folder", "data.augment=none", f"data.root={tmp_path / root}", f"data.size={size}"]
        return shared.dataset(load("smoke/digits", changes), torch.device("cpu")).train

    found = [opened("a", 16), opened("b", 16), opened("a", 32), opened("a", 16)]
    assert [len(images) for images in found] == [2, 4, 2, 2]
    assert [images.input_shape[1] for images in found] == [16, 16, 32, 16]


def test_a_request_to_save_reaches_every_run(tmp_path):
    wanted = entries(tmp_path, recipes=PLAIN, seeds=(0, 1))
    run_sweep(wanted, SavesAtRound(4))
    for entry in wanted:
        names = sorted(path.name for path in (entry.path / "checkpoints").iterdir())
        assert names == ["step-00000003.pt", "step-00000010.pt"]


def test_progress_is_one_line_per_epoch_and_run_where_there_is_no_terminal(tmp_path, capsys):
    run_sweep(entries(tmp_path, recipes=PLAIN, seeds=(0, 1)))
    lines = capsys.readouterr().out.splitlines()
    for seed in (0, 1):
        own = [line for line in lines if line.startswith(f"smoke/digits/data.batch_size=256,run.epochs=2/seed{seed}: ")]
        assert [line.split(": ")[1].split()[0] for line in own] == ["epoch", "epoch", "finished"]


def test_records_are_written_where_asked(tmp_path):
    wanted = entries(tmp_path / "runs", recipes=PLAIN, seeds=(0, 1))
    run_sweep(wanted, results=tmp_path / "results")
    found = sorted(json.loads(path.read_text())["seed"] for path in (tmp_path / "results").glob("*.json"))
    assert found == [0, 1]
