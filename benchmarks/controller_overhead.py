"""What does the controller cost in training? Step time of attached over plain, for both paths of the controller.

    python benchmarks/controller_overhead.py cifar/resnet56:64 cifar/resnet110:64 --modes compiled+graph graph

A case is MODEL:BATCH. First the fused kernels are checked against float64; then for each case and mode the variants
are built (compile time and peak memory are read then) and timed in turn. Runs from a checkout without installing.
"""

import argparse
import json
import pathlib
import sys
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402

import timestepper  # noqa: E402
from timestepper.adapters import create_model  # noqa: E402
from timestepper.bench import agreement  # noqa: E402
from timestepper.bench.environment import environment  # noqa: E402
from timestepper.bench.quiet import quiet  # noqa: E402
from timestepper.bench.timing import interleaved  # noqa: E402
from timestepper.bench.training import MODES, Case, TrainingStep, forget, runtime  # noqa: E402

VARIANTS = ("plain", "again", "path", "fused", "independent")


def variant(name: str, model: str, classes: int) -> torch.nn.Module:
    """``again`` is plain a second time: the noise between two builds. ``path`` is the plain PyTorch controller."""
    torch.manual_seed(0)
    network = create_model(model, num_classes=classes)
    if name in ("plain", "again"):
        return network
    net = timestepper.attach(network, "independent" if name == "independent" else "lstm")
    if name in ("path", "fused"):
        net.controllers.fused = name == "fused"
    return net


def check(device: torch.device) -> dict:
    """Every kernel against float64, with uninitialised memory filled with NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    errors = {"describe": agreement.describe_errors(device), "scale": agreement.scale_errors(device)}
    for name, stages in agreement.STAGES.items():
        errors[name] = agreement.controller_errors(stages, device)
    torch.use_deterministic_algorithms(False)
    errors["network"] = network_errors(device)
    for name, found in errors.items():
        worst = max(found, key=found.get)
        print(f"check {name:16s} largest relative error {found[worst]:.1e} ({worst})")
        for label, value in found.items():
            if value > 1e-5:
                print(f"    {label}: {value:.2e}")
    return errors


def network_errors(device: torch.device) -> dict[str, float]:
    """Logits and gradients of a small network on both paths, and folding, on the device in float32."""
    results = {}
    images = torch.randn(8, 3, 32, 32, device=device)
    for path in (False, True):
        net = variant("path", "cifar/resnet20", 10).to(device)
        net.controllers.fused = path
        logits = net(images)
        logits.square().sum().backward()
        results[path] = [logits.detach(), *(p.grad for p in net.parameters())]
    errors = [agreement.relative_error(a, b.double().cpu()) for a, b in zip(results[True], results[False], strict=True)]
    net.eval()
    folded = timestepper.fold(net)
    with torch.no_grad():
        difference = float((folded(images) - net(images)).abs().max())
    return {"logits": errors[0], "worst gradient": max(errors[1:]), "folded differs by": difference}


def measure(model: str, batch: int, mode: str, options: argparse.Namespace, device: torch.device) -> dict:
    small = model.startswith("cifar/")
    shape, classes = ((3, 32, 32), 10) if small else ((3, 224, 224), 1000)
    channels_last = options.channels_last == "always" or (options.channels_last == "imagenet" and not small)
    case = Case(batch, shape, classes, runtime(mode, device, options.precision, channels_last))
    case.runtime.configure()
    steps: dict[str, TrainingStep] = {}
    result: dict = {"model": model, "batch": batch, "mode": mode, "channels_last": channels_last, "variants": {}}
    for name in options.variants:
        try:
            forget()
            steps[name] = TrainingStep(variant(name, model, classes), case)
            print(f"  built {name}: first step {steps[name].first_seconds:.1f} s", flush=True)
        except Exception:
            print(f"  {name} failed:\n{traceback.format_exc(limit=-6)}", flush=True)
    timings = interleaved(steps, device, rounds=options.rounds, seconds=options.seconds)
    for name, timing in timings.items():
        entry = {
            "ms": timing.ms.median,
            "ratio": timing.ratio.median,
            "ratio_quartiles": [timing.ratio.low, timing.ratio.high],
            "first_step_s": steps[name].first_seconds,
            "peak_bytes": steps[name].peak_bytes,
            "loss": float(steps[name]()),
        }
        result["variants"][name] = entry
    if device.type == "cuda":
        with quiet():
            count_kernels(steps, result["variants"])
    print_table(result)
    return result


def count_kernels(steps: dict[str, TrainingStep], entries: dict[str, dict]) -> None:
    """Launches per step, and for each variant what it launches beyond the first one."""
    found = {}
    for name, step in steps.items():
        try:
            found[name] = step.kernels()
            entries[name]["kernels"] = sum(found[name][0].values())
            entries[name]["kernel_us"] = sum(found[name][1].values())
        except Exception as error:
            print(f"  no kernel counts for {name}: {error}")
    first = next(iter(found), None)
    for name in [name for name in found if name != first]:
        counts = found[name][0].copy()
        counts.subtract(found[first][0])
        extra = {key: count for key, count in counts.items() if count > 0}
        times = {key: found[name][1][key] * count / found[name][0][key] for key, count in extra.items()}
        listed = sorted(times, key=times.get, reverse=True)
        entries[name]["extra"] = [[key[:90], extra[key], round(times[key], 1)] for key in listed[:40]]


def print_table(result: dict) -> None:
    print(f"{result['model']} batch {result['batch']} {result['mode']} channels_last={result['channels_last']}")
    first = next(iter(result["variants"].values()))
    for name, entry in result["variants"].items():
        low, high = entry["ratio_quartiles"]
        print(
            f"  {name:12s} {entry['ms']:9.3f} ms  ratio {entry['ratio']:.4f} [{low:.4f}, {high:.4f}]  "
            f"first step {entry['first_step_s']:6.1f} s ({entry['first_step_s'] / first['first_step_s']:.2f}x)  "
            f"peak {entry['peak_bytes'] / 2**20:9.1f} MiB ({entry['peak_bytes'] / max(1, first['peak_bytes']):.4f}x)  "
            f"kernels {entry.get('kernels', 0):5d} {entry.get('kernel_us', 0):9.0f} us  loss {entry['loss']:.4f}"
        )
    for key, count, microseconds in result["variants"].get("fused", {}).get("extra", [])[:14]:
        print(f"    + {count:4d} x {key:90s} {microseconds:8.1f} us")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=["cifar/resnet56:64"], help="MODEL:BATCH")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=["plain", "path", "fused"],
        help="what is timed; the first is what the others are compared with",
    )
    parser.add_argument(
        "--modes", nargs="+", choices=MODES, default=["compiled+graph"], help="how a training step runs"
    )
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16"), default="bf16", help="of the forward pass")
    parser.add_argument(
        "--channels-last",
        choices=("never", "imagenet", "always"),
        default="imagenet",
        help="memory layout; imagenet: for 224 pixels alone",
    )
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="cuda or cpu; by default a GPU where there is one",
    )
    parser.add_argument("--budget", type=float, default=540, help="seconds; no new case starts when too few are left")
    parser.add_argument("--rounds", type=int, default=15, help="how often each variant is timed, in turn")
    parser.add_argument("--seconds", type=float, default=6, help="timing of one case, without building")
    parser.add_argument("--no-check", action="store_true", help="leave the check against float64 out")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures here")
    options = parser.parse_args()
    start = time.perf_counter()
    device = torch.device(options.device)
    report: dict = {"environment": environment(device, options.commit), "cases": []}
    print(json.dumps(report["environment"]))
    if not options.no_check:
        try:
            report["errors"] = check(device)
        except Exception:
            print(f"check failed:\n{traceback.format_exc(limit=-8)}", flush=True)
    if any("compiled" in mode for mode in options.modes):  # starts the compiler's workers
        torch.compile(lambda x: (x.sin() + 1).sum(0))(torch.randn(64, 64, device=device))
    longest = 0.0
    for mode in options.modes:
        for case in options.cases:
            began = time.perf_counter()
            if began - start + longest > options.budget:
                print(f"left out for lack of time: {case} {mode}")
                continue
            try:
                model, _, batch = case.rpartition(":")
                report["cases"].append(measure(model, int(batch), mode, options, device))
            except Exception:
                print(f"{case} {mode} failed:\n{traceback.format_exc(limit=-8)}", flush=True)
            longest = time.perf_counter() - began
            print(f"  ({longest:.0f} s, {time.perf_counter() - start:.0f} s so far)", flush=True)
            if options.json:
                options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
