"""Makes the fixtures of a version, and goes on from them: what both sides must do alike.

    golden_runs.py make FOLDER           keep what today's code makes, once for every version
    golden_runs.py go-on FOLDER WORK     go on from a version's files in WORK, and write the losses there

Both run in a process of their own, on kernels that every x86-64 processor has, so that the bits do not depend on which
one runs them.
"""

import json
import os
import shutil
import sys
from pathlib import Path

if __name__ == "__main__":  # before torch is loaded
    os.environ.update(
        ATEN_CPU_CAPABILITY="default", ONEDNN_MAX_CPU_ISA="SSE41", MKL_CBWR="COMPATIBLE", OMP_NUM_THREADS="1"
    )

import timm
import torch
from torch import nn
from torch.nn import functional as F

import timestepper
from timestepper.cli import main as command_line

KINDS = {"lstm": [], "two_fc": [], "independent": [], "fixed": ["controller.value=0.3"]}
NETWORKS = ["resnet8", "densenet7"]  # by the command line, on digits: 22 updates an epoch
SQUEEZED = {"layers": (1, 2, 1, 1), "channels": (8, 16, 16, 32), "num_classes": 5}  # by a user's own loop
FIRST, LOSSES = 3, 20


def train(folder: Path, network: str, kind: str) -> None:
    """The command line, in this process; it resumes where the folder holds a run."""
    settings = [f"model.name=cifar/{network}", f"controller.kind={kind}", *KINDS[kind]]
    fixed = ["run.epochs=2", "run.log_steps=1", "run.tensorboard=false", "runtime.device=cpu"]
    sys.argv = ["timestepper", "train", "smoke/digits", *settings, *fixed, "--run-dir", str(folder)]
    try:
        command_line()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{sys.argv} ended with {end.code}") from None


def squeezed(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("seresnet18", **SQUEEZED)
    return timestepper.attach(model, "fixed(0.3)" if kind == "fixed" else kind)


def optimiser_of(net: nn.Module) -> torch.optim.Optimizer:
    """By name, because the order of a network's parameters is no part of the promise."""
    named = sorted(net.named_parameters())
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.05, momentum=0.9, weight_decay=1e-4)


def losses(net: nn.Module, optimiser: torch.optim.Optimizer, steps: range) -> list[float]:
    found = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(8, 3, 32, 32, generator=generator)
        labels = torch.randint(5, (8,), generator=generator)
        optimiser.zero_grad()
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def make(folder: Path) -> None:
    for network in NETWORKS:
        for kind in KINDS:
            run = folder / f"{network}-{kind}"
            train(run, network, kind)
            (run / "checkpoints" / "step-00000044.pt").unlink()  # as after a kill in the second epoch
            status = json.loads((run / "status.json").read_text())
            (run / "status.json").write_text(json.dumps(status | {"state": "running", "step": 30}, indent=2) + "\n")
            (run / "run.lock").unlink()
    for kind in KINDS:
        net = squeezed(kind).train()
        optimiser = optimiser_of(net)
        losses(net, optimiser, range(FIRST))
        case = folder / f"seresnet-{kind}"
        case.mkdir()
        torch.save({"model": net.state_dict(), "optimiser": optimiser.state_dict()}, case / "checkpoint.pt")
        timestepper.save_controllers(net, case / "steps.safetensors")
        timestepper.save_folded(net, case / "folded.safetensors")
        golden = {"torch": torch.__version__, "losses": losses(net, optimiser, range(FIRST, FIRST + LOSSES))}
        (case / "golden.json").write_text(json.dumps(golden, indent=1) + "\n")


def go_on(folder: Path, work: Path) -> dict[str, list[float]]:
    """Losses of every case after its checkpoint."""
    found = {}
    for network in NETWORKS:
        for kind in KINDS:
            case = f"{network}-{kind}"
            shutil.copytree(folder / case, work / case)
            train(work / case, network, kind)
            found[case] = logged(work / case)
    for kind in KINDS:
        case = folder / f"seresnet-{kind}"
        saved = torch.load(case / "checkpoint.pt", weights_only=True)
        net = squeezed(kind).train()
        optimiser = optimiser_of(net)
        net.load_state_dict(saved["model"], strict=True)
        optimiser.load_state_dict(saved["optimiser"])
        found[case.name] = losses(net, optimiser, range(FIRST, FIRST + LOSSES))
    return found


def logged(run: Path) -> list[float]:
    """Losses of the second epoch, which is trained after the checkpoint."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step" and line["step"] > 22][:LOSSES]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        folder, work = map(Path, sys.argv[2:4])
        (work / "losses.json").write_text(json.dumps(go_on(folder, work)))
