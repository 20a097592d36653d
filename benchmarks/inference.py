"""Is a folded network the plain network? Exported graph node for node, latency, ONNX file size.

python benchmarks/inference.py cifar/resnet56:64 timm/resnet50:64 --modes eager compiled+graph
"""

import argparse
import copy
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

import timestepper  # noqa: E402
from timestepper.bench import inference, peers  # noqa: E402
from timestepper.bench.environment import environment  # noqa: E402
from timestepper.bench.timing import interleaved  # noqa: E402
from timestepper.bench.training import MODES, Case, forget, runtime  # noqa: E402


def networks(model: str, classes: int) -> dict[str, torch.nn.Module]:
    """Plain, plain once more for the noise between two builds, attached with unlike step sizes, and folded."""
    attached = peers.build("lstm", model, classes)
    for parameter in attached.controllers.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain = peers.build("plain", model, classes)
    return {"plain": plain, "again": copy.deepcopy(plain), "attached": attached, "folded": timestepper.fold(attached)}


def same_as_plain(model: str, classes: int, pixels: int) -> dict:
    """Graphs and files, on the CPU with one image."""
    found = networks(model, classes)
    plain, folded = found["plain"], found["folded"]
    images = torch.randn(1, 3, pixels, pixels)
    differences = inference.graph_differences(plain, folded, images)
    same: dict = {"nodes": len(inference.graph_nodes(plain, images)), "graph_differences": differences}
    try:
        same["onnx_bytes"] = [inference.onnx_bytes(network, images) for network in (plain, folded)]
    except Exception as error:
        same["onnx_skipped"] = f"{type(error).__name__}: {error}"
    return same


def latency(model: str, classes: int, pixels: int, batch: int, mode: str, options: argparse.Namespace) -> dict:
    device = torch.device(options.device)
    case = Case(batch, (3, pixels, pixels), classes, runtime(mode, device, options.precision, pixels > 32))
    calls = {}
    for name, network in networks(model, classes).items():
        if case.runtime.cuda_graph:
            forget()
        calls[name] = inference.Inference(network, case)
    timings = interleaved(calls, device, seconds=options.seconds)
    return {
        name: {"ms": timing.ms.median, "ratio": timing.ratio.median, "quartiles": [timing.ratio.low, timing.ratio.high]}
        for name, timing in timings.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["cifar/resnet56:64"], help="MODEL:BATCH")
    parser.add_argument("--modes", nargs="*", choices=MODES, default=["eager"], help="how a forward pass runs")
    parser.add_argument(
        "--precision", choices=("float32", "tf32", "bf16"), default="float32", help="of the forward pass"
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda or cpu; by default a GPU where there is one",
    )
    parser.add_argument("--seconds", type=float, default=6, help="timing of one case and mode, without building")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures here")
    options = parser.parse_args()
    report: dict = {"environment": environment(torch.device(options.device), options.commit), "cases": []}
    for text in options.cases:
        model, _, batch = text.rpartition(":")
        classes, pixels = (10, 32) if model.startswith("cifar/") else (1000, 224)
        found = {"model": model, "batch": int(batch), **same_as_plain(model, classes, pixels)}
        print(f"{model}: {found['nodes']} nodes, {len(found['graph_differences'])} differ between plain and folded")
        print(f"  ONNX: {found.get('onnx_bytes') or found.get('onnx_skipped')}")
        for mode in options.modes:
            found[mode] = latency(model, classes, pixels, int(batch), mode, options)
            for name, row in found[mode].items():
                low, high = row["quartiles"]
                print(f"  {mode} {name:9s} {row['ms']:9.3f} ms, ratio {row['ratio']:.4f} [{low:.4f}, {high:.4f}]")
        report["cases"].append(found)
        if options.json:
            options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
