"""Run folders, checkpoints, saved controllers, folded weights and records of older versions: T40.

They are read, and training goes on from them with the same losses to the last bit. A new version gets a folder of its
own: ``python tests/compatibility/golden_runs.py make tests/compatibility/vX.Y.Z``. ``resnet8-stopped``, a run that a
signal stopped in the middle of an epoch, is used by the fault tests.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import golden_runs
import pytest
import timm
import torch

import timestepper
from timestepper.records import read_records
from timestepper.tensors import read_tensors

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
RUNS = [f"{network}-{kind}" for network in golden_runs.NETWORKS for kind in golden_runs.KINDS]
SQUEEZED = [f"seresnet-{kind}" for kind in golden_runs.KINDS]


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, list[float]]]]:
    """Of every version: the folder in which its runs went on, and their losses."""
    found = {}
    for version in VERSIONS:
        work = tmp_path_factory.mktemp(version)
        command = [sys.executable, str(HERE / "golden_runs.py"), "go-on", str(HERE / version), str(work)]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
        assert done.returncode == 0, done.stdout + done.stderr
        found[version] = work, json.loads((work / "losses.json").read_text())
    return found


def agree(found: list[float], golden: list[float], made_with: str) -> None:
    assert len(golden) == golden_runs.LOSSES
    same = made_with.split(".")[:2] == torch.__version__.split(".")[:2] and platform.machine() == "x86_64"
    assert found == (golden if same else pytest.approx(golden, rel=1e-3))


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_goes_on_with_the_same_losses(gone_on, version, case):
    work, losses = gone_on[version]
    record = json.loads((HERE / version / case / "record.json").read_text())
    agree(losses[case], golden_runs.logged(HERE / version / case), record["versions"]["torch"])
    again = json.loads((work / case / "record.json").read_text())
    assert again["final"]["test"]["error"] == pytest.approx(record["final"]["test"]["error"], abs=0.005)


@pytest.mark.parametrize("case", SQUEEZED)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_user_s_loop_goes_on_with_the_same_losses(gone_on, version, case):
    golden = json.loads((HERE / version / case / "golden.json").read_text())
    agree(gone_on[version][1][case], golden["losses"], golden["torch"])


@pytest.mark.parametrize("case", SQUEEZED)
@pytest.mark.parametrize("version", VERSIONS)
def test_saved_controllers_and_folded_weights_are_read(version, case):
    folder = HERE / version / case
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)["model"]
    model = timm.create_model("seresnet18", **golden_runs.SQUEEZED)
    net = timestepper.load_controllers(model, folder / "steps.safetensors").eval()
    state = net.state_dict()
    assert {key for key in state if key.startswith("controllers.")} == {
        k for k in saved if k.startswith("controllers.")
    }
    assert all(torch.equal(state[key], saved[key]) for key in state if key.startswith("controllers."))
    net.load_state_dict(saved, strict=True)
    folded = timestepper.load_folded(
        timm.create_model("seresnet18", **golden_runs.SQUEEZED), folder / "folded.safetensors"
    )
    for key, value in timestepper.fold(net).state_dict().items():
        torch.testing.assert_close(folded.state_dict()[key], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_weights_and_records_of_a_run_are_read(version, case):
    folder = HERE / version / case
    assert read_tensors(folder / "weights.safetensors")
    records, problems = read_records([folder / "record.json"])
    assert not problems
    assert len(records) == 1
