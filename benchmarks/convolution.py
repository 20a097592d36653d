"""Are our 3x3 convolutions faster than cuDNN's, and which way to divide the work is best for which layer?

    python benchmarks/convolution.py --json convolution.json

For every distinct layer of CIFAR ResNet-56 that the kernels take: forward, input gradient and weight gradient by cuDNN
(bf16, channels-last, benchmark mode) and by ours, as kernels/convolution.py divides the work and in the ways that
differ from that in one number. A figure is the median of calls recorded in one CUDA graph; data lie in the L2
cache, as they do in training. Every way is compared with float64. One that does not compile or is wrong is printed and
left out. The best go into the tables.

Whole training steps: ``training_step.py`` and ``sweep.py`` with runtime.fast_convolutions=true and without.
"""

import argparse
import contextlib
import json
import multiprocessing
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from timestepper.bench.environment import environment  # noqa: E402
from timestepper.kernels.convolution import (  # noqa: E402
    CONVOLVE,
    WEIGHT_GRADIENT,
    Blocks,
    launch_convolve,
    launch_weight_gradient,
    library_gradient,
)

# Side of the image and layers of this kind in ResNet-56, by channels.
LAYERS = {16: (32, 18), 32: (16, 17), 64: (8, 17)}
KINDS = ("forward", "input gradient", "weight gradient")
WORST = 2.5e-3  # relative error; rounding the result to bf16 alone gives 1.7e-3
CHANGES = {
    "pixels": (1, 2),
    "span": (1, 2, 4),
    "together": (1, 2, 3, 9),
    "rows": (32, 64, 128),
    "outputs": (16, 32, 64),
    "warps": (2, 4, 8),
    "held": (False, True),
}


def candidates(kind: str, channels: int) -> list[Blocks]:
    """The table's own entry, and all that differ from it in one number."""
    known, changes = CONVOLVE[channels], CHANGES
    if kind == "weight gradient":
        known = WEIGHT_GRADIENT[channels]
        changes = changes | {"slices": (known.slices // 2, 2 * known.slices), "stages": (1, 2, 3)}
    others = [known._replace(**{name: value}) for name, values in changes.items() for value in values]
    return [one for one in dict.fromkeys([known, *others]) if pieces(one) % one.together == 0]


def pieces(blocks: Blocks) -> int:
    """Of a window."""
    return 3 * -(-(blocks.pixels + 2) // blocks.span)


def tensors(batch: int, channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, weight and the output's gradient."""
    shape, generator = (batch, channels, *2 * LAYERS[channels][:1]), torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3, generator=generator) / (9 * channels) ** 0.5
    place = {"device": "cuda", "dtype": torch.bfloat16, "memory_format": torch.channels_last}
    return x.to(**place), weight.to(**place), gradient.to(**place)


def relative_error(found: Tensor, exact: Tensor) -> float:
    """NaN counts as infinite."""
    error = float((found.double() - exact).norm() / exact.norm())
    return error if error == error else float("inf")


def ours(kind: str, x: Tensor, weight: Tensor, gradient: Tensor, blocks: Blocks) -> Tensor:
    if kind == "forward":
        return launch_convolve(x, weight, blocks=blocks)
    if kind == "input gradient":
        return launch_convolve(gradient, weight, backwards=True, blocks=blocks)
    return launch_weight_gradient(gradient, x, weight, blocks=blocks)


def library(kind: str, x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    if kind == "forward":
        return F.conv2d(x, weight, padding=1)
    return library_gradient(gradient, x, weight, 0 if kind == "input gradient" else 1)


def microseconds(call: Callable[[], Tensor], calls: int, rounds: int) -> float:
    """Median time of a call, recorded so many times in one CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    graph.replay()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def compile_one(task: tuple[str, int, Blocks]) -> None:
    """In a process of its own: fills Triton's cache on disk. What fails here fails again, and is told of, later."""
    kind, channels, blocks = task
    with contextlib.suppress(Exception):
        ours(kind, *tensors(2, channels), blocks)
        torch.cuda.synchronize()


def compile_all(channels: list[int], jobs: int) -> None:
    """One after the other the kernels would take most of the time."""
    tasks = {(k, c, blocks._replace(slices=2)) for k in KINDS for c in channels for blocks in candidates(k, c)}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        pool.map(compile_one, sorted(tasks), chunksize=1)


def measure_layer(batch: int, channels: int, options: argparse.Namespace) -> list[dict]:
    case = tensors(batch, channels)
    return [{"channels": channels, "batch": batch} | measure(kind, case, options) for kind in KINDS]


def measure(kind: str, case: tuple[Tensor, Tensor, Tensor], options: argparse.Namespace) -> dict:
    """cuDNN and every configuration on one layer."""
    batch, channels = case[0].shape[:2]
    timing = (options.calls, options.rounds)
    exact = library(kind, *(tensor.double() for tensor in case))
    base = microseconds(lambda: library(kind, *case), *timing)
    base_error = relative_error(library(kind, *case), exact)
    print(f"\n{channels} channels, batch {batch}, {kind}: cuDNN {base:.2f} us, error {base_error:.1e}")
    rows = []
    for blocks in candidates(kind, channels):
        text = " ".join(f"{name} {value}" for name, value in blocks._asdict().items())
        try:
            error = relative_error(ours(kind, *case, blocks), exact)
            if error > max(WORST, 1.1 * base_error):
                raise ArithmeticError(f"error {error:.1e}")
            found = microseconds(lambda: ours(kind, *case, blocks), *timing)  # noqa: B023
        except Exception as failure:
            print(f"  failed: {text}: {type(failure).__name__}: {str(failure)[:200]}")
            continue
        rows.append({"blocks": blocks._asdict(), "us": found, "error": error})
        print(f"  {found:7.2f} us  {found / base:6.1%}  error {error:.1e}  {text}", flush=True)
    rows.sort(key=lambda row: row["us"])
    return {"kind": kind, "cudnn_us": base, "cudnn_error": base_error, "ours": rows}


def summary(found: list[dict]) -> None:
    print("\nchannels batch kind               cuDNN     best  share  configuration")
    for case in found:
        head = f"{case['channels']:8d} {case['batch']:5d} {case['kind']:16s} {case['cudnn_us']:7.2f}"
        if not case["ours"]:
            print(head, "   none works")
            continue
        best = case["ours"][0]
        blocks = str(Blocks(**best["blocks"]))
        print(f"{head}  {best['us']:7.2f} {best['us'] / case['cudnn_us']:6.1%}  {blocks}")
    for batch in sorted({case["batch"] for case in found}):
        cases = [case for case in found if case["batch"] == batch and case["ours"]]
        layers = [LAYERS[case["channels"]][1] for case in cases]
        base = sum(n * case["cudnn_us"] for n, case in zip(layers, cases, strict=True)) / 1000
        best = sum(n * case["ours"][0]["us"] for n, case in zip(layers, cases, strict=True)) / 1000
        print(f"all these layers of ResNet-56 in one step at batch {batch}: cuDNN {base:.2f} ms, ours {best:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 64], help="images at once")
    parser.add_argument(
        "--channels", type=int, nargs="+", default=list(LAYERS), choices=list(LAYERS), help="of the layer"
    )
    parser.add_argument("--calls", type=int, default=20, help="calls in one graph")
    parser.add_argument("--rounds", type=int, default=9, help="replays of a graph")
    parser.add_argument("--jobs", type=int, default=8, help="processes that compile")
    parser.add_argument("--commit", help="recorded where the source carries no history")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    start = time.perf_counter()
    compile_all(options.channels, options.jobs)
    print(f"compiled in {time.perf_counter() - start:.0f} s")
    found = []
    for channels in options.channels:
        for batch in options.batches:
            found += measure_layer(batch, channels, options)
    summary(found)
    print(f"{time.perf_counter() - start:.0f} s in all")
    if options.json:
        device = torch.device("cuda")
        answer = {"environment": environment(device, options.commit), "layers": found}
        options.json.write_text(json.dumps(answer, indent=2) + "\n")


if __name__ == "__main__":
    main()
